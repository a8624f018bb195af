"""Training over real processes gives the numbers of one process."""
import json
import os

import pytest
import torch
from safetensors.torch import load_file

import harness


def train_job(cluster, name, **options):
    job = harness.gpt_job(cluster.folder, name, **options)
    cluster.weft("job", "submit", job, "--watch")
    out = os.path.join(cluster.folder, f"{name}.safetensors")
    cluster.weft("checkpoint", "export", name, "--out", out)
    return cluster.job(name), load_file(out)


def test_any_cut_and_schedule_gives_the_same_bits(cluster):
    cluster.start_peers(4)
    precision = 'precision = "fp64"\nclip_norm = 0.5'
    whole, reference = train_job(cluster, "whole", stages=1, train=precision)
    assert whole["state"] == "finished" and whole["loss"] < whole["first_loss"]
    for stages, schedule in [(2, "gpipe"), (3, "1f1b"), (4, "zb-h1")]:
        name = f"s{stages}"
        job, weights = train_job(cluster, name, stages=stages, schedule=schedule, train=precision)
        assert job["loss"] == whole["loss"] and job["eval_loss"] == whole["eval_loss"]
        assert weights.keys() == reference.keys()
        for key, value in reference.items():
            assert torch.equal(weights[key], value), key
        cluster.wait_idle(4)


def test_exported_weights_evaluate_alike_in_pytorch(cluster):
    cluster.start_peers(3)
    job, _ = train_job(cluster, "gpt", stages=3, steps=30, train="eval_every = 10")
    assert job["eval_loss"] < job["first_loss"]
    text = harness.python("examples/eval_gpt.py", *harness.TINY_GPT, "--weights",
                          f"{cluster.folder}/gpt.safetensors", "--data",
                          f"{cluster.folder}/tokens.eval.bin")
    theirs = float(text.split()[-1])
    assert theirs == pytest.approx(job["eval_loss"], abs=1e-4)


def kill_and_restart_everything(cluster, peers):
    workers = [w for name in cluster.processes for w in
               harness.children_of(cluster.processes[name].pid)]
    for name in list(cluster.processes):
        cluster.kill(name)
    harness.wait_for("end of every worker", lambda: not any(map(harness.alive, workers)), 30)
    cluster._ended = set()
    cluster.restart_broker()
    for i in range(peers):
        cluster.start(f"peer-{i}", [os.path.join(harness.BIN, "weftd"), "run", "--state-dir",
                                    os.path.join(cluster.folder, f"peer-{i}"), "--listen-host",
                                    "127.0.0.1", "--advertise-host", "127.0.0.1", "--threads", "1",
                                    "--device", "cpu"])
    cluster.wait_idle(peers)


def equals_undisturbed(cluster, name, steps, train):
    out = os.path.join(cluster.folder, f"{name}.safetensors")
    cluster.weft("checkpoint", "export", name, "--out", out)
    cluster.wait_idle(3)
    _, undisturbed = train_job(cluster, "undisturbed", stages=2, steps=steps, train=train)
    weights = load_file(out)
    assert weights.keys() == undisturbed.keys()
    for key, value in weights.items():
        assert torch.equal(value, undisturbed[key]), key


def test_ten_steps_then_all_killed_then_ten_more_at_other_stages(cluster):
    cluster.start_peers(3)
    options = 'precision = "fp64"\nclip_norm = 0.5\nwarmup_steps = 5'
    cluster.weft("job", "submit",
                 harness.gpt_job(cluster.folder, "parts", stages=2, steps=10, train=options),
                 "--watch")
    kill_and_restart_everything(cluster, 3)
    assert cluster.job("parts")["step"] == 10
    cluster.weft("job", "resume", "parts", "--stages", "3", "--steps", "20", "--watch")
    equals_undisturbed(cluster, "parts", 20, options)


def test_all_killed_in_the_middle_of_a_step_and_resumed_at_other_stages(cluster):
    cluster.start_peers(3)
    options = 'precision = "fp64"\n[train.checkpoint]\nevery = 5'
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, "broken", stages=2,
                                                  steps=100000, train=options))
    harness.wait_for("checkpoint of step 10",
                     lambda: (cluster.job("broken")["last_checkpoint_step"] or 0) >= 10, 120)
    kill_and_restart_everything(cluster, 3)
    job = cluster.job("broken")
    assert job["state"] == "failed" and "restart" in job["reason"]
    steps = job["last_checkpoint_step"] + 10
    cluster.weft("job", "resume", "broken", "--stages", "3", "--steps", str(steps), "--watch")
    equals_undisturbed(cluster, "broken", steps, options)


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
