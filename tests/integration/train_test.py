"""Training over real processes gives the numbers of one process."""
import json
import os

import pytest
import torch
from safetensors.torch import load_file

import harness


def train(cluster, name, **options):
    job = harness.gpt_job(cluster.folder, name, **options)
    cluster.weft("job", "submit", job, "--watch")
    out = os.path.join(cluster.folder, f"{name}.safetensors")
    cluster.weft("checkpoint", "export", name, "--out", out)
    return cluster.job(name), load_file(out)


def test_any_cut_and_schedule_gives_the_same_bits(cluster):
    cluster.start_peers(4)
    precision = 'precision = "fp64"\nclip_norm = 0.5'
    whole, reference = train(cluster, "whole", stages=1, train=precision)
    assert whole["state"] == "finished" and whole["loss"] < whole["first_loss"]
    for stages, schedule in [(2, "gpipe"), (3, "1f1b"), (4, "1f1b")]:
        name = f"s{stages}"
        job, weights = train(cluster, name, stages=stages, schedule=schedule, train=precision)
        assert job["loss"] == whole["loss"] and job["eval_loss"] == whole["eval_loss"]
        assert weights.keys() == reference.keys()
        for key, value in reference.items():
            assert torch.equal(weights[key], value), key
        cluster.wait_idle(4)


def test_exported_weights_evaluate_alike_in_pytorch(cluster):
    cluster.start_peers(3)
    job, _ = train(cluster, "gpt", stages=3, steps=30, train="eval_every = 10")
    assert job["eval_loss"] < job["first_loss"]
    text = harness.python("examples/eval_gpt.py", *harness.TINY_GPT, "--weights",
                          f"{cluster.folder}/gpt.safetensors", "--data",
                          f"{cluster.folder}/tokens.eval.bin")
    theirs = float(text.split()[-1])
    assert theirs == pytest.approx(job["eval_loss"], abs=1e-4)


def test_killed_whole_and_resumed_with_other_stages_equals_undisturbed(cluster):
    cluster.start_peers(3)
    options = dict(steps=20, train='precision = "fp64"\n[train.checkpoint]\nevery = 10')
    _, undisturbed = train(cluster, "straight", stages=2, **options)
    cluster.wait_idle(3)
    job = harness.gpt_job(cluster.folder, "broken", stages=2, **options)
    cluster.weft("job", "submit", job)
    harness.wait_for("checkpoint of step 10",
                     lambda: (cluster.job("broken").get("last_checkpoint_step") or 0) >= 10, 120)
    for name in list(cluster.processes):
        cluster.kill(name)
    cluster._ended = set()
    cluster.restart_broker()
    for i in range(3):
        cluster.start(f"peer-{i}", [os.path.join(harness.BIN, "weftd"), "run", "--state-dir",
                                    os.path.join(cluster.folder, f"peer-{i}"), "--listen-host",
                                    "127.0.0.1", "--advertise-host", "127.0.0.1", "--threads", "1",
                                    "--device", "cpu"])
    cluster.wait_idle(3)
    state = cluster.job("broken")["state"]
    if state != "finished":  # it may have reached step 20 before the kill
        assert state == "failed" and "restart" in cluster.job("broken")["reason"]
        cluster.weft("job", "resume", "broken", "--stages", "3", "--watch")
    out = os.path.join(cluster.folder, "broken.safetensors")
    cluster.weft("checkpoint", "export", "broken", "--out", out)
    for key, value in load_file(out).items():
        assert torch.equal(value, undisturbed[key]), key


def test_up_submit_down_leaves_nothing(folder):
    cluster = harness.Cluster(folder)
    up = cluster.weft_json("up", "--peers", "2")
    assert up["join_address"].startswith("weft://") and len(up["peers"]) == 2
    state = os.path.join(folder, "state", "weft", "local")
    with open(os.path.join(state, "cluster.json"), encoding="utf-8") as file:
        pids = [p["pid"] for p in json.load(file)["processes"]]
    try:
        cluster.weft("job", "submit", harness.gpt_job(folder, "tiny", steps=2), "--watch")
    finally:
        cluster.weft("down")
    assert not any(harness.alive(pid) for pid in pids)
    assert not os.path.exists(state)
    assert cluster.run("job", "list").returncode != 0
