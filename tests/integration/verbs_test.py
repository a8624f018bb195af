"""Every verb of the command line against a real cluster, and the job file's less common keys."""
import json
import os

import pytest
import torch
from safetensors.torch import load_file

import harness


@pytest.fixture
def finished(cluster):
    """A finished job of four steps over two of three peers."""
    cluster.start_peers(3)
    cluster.weft("job", "submit", harness.gpt_job(
        cluster.folder, steps=4, train="eval_every = 2\n[train.checkpoint]\nevery = 2"), "--watch")
    return cluster


def test_job_verbs(finished):
    jobs = finished.weft_json("job", "list")["jobs"]
    assert [j["name"] for j in jobs] == ["gpt"] and jobs[0]["state"] == "finished"
    assert "gpt" in finished.weft("job", "list").stdout
    assert finished.weft_json("job", "get", jobs[0]["id"])["step"] == 4
    metrics = finished.weft_json("job", "metrics", "gpt")
    assert [s["step"] for s in metrics["steps"]] == [1, 2, 3, 4]
    assert [e["step"] for e in metrics["evals"]] == [2, 4]
    assert all(len(s["stages"]) == 2 and s["edges"] for s in metrics["steps"])
    kinds = [e["message"] for e in finished.weft_json("job", "events", "gpt")["events"]]
    assert any("running -> finished" in k for k in kinds)
    assert any("stage 1" in line["text"] for line in finished.weft_json("job", "logs", "gpt")["lines"])
    told = finished.weft("job", "explain", "gpt").stdout
    assert "bottleneck" in told and "IN FLIGHT" in told and "s observed" in told
    assert "finished" in finished.weft("job", "wait", "gpt").stdout
    assert finished.run("job", "cancel", "gpt").returncode == 1
    steps = [c["step"] for c in finished.weft_json("checkpoint", "list", "gpt")["checkpoints"]]
    assert sorted(steps) == [2, 4]
    older = os.path.join(finished.folder, "older.safetensors")
    assert finished.weft_json("checkpoint", "export", "gpt", "--out", older, "--step",
                              "2")["step"] == 2
    assert not os.path.exists(older + ".parts")
    finished.weft("job", "delete", "gpt")
    assert finished.weft_json("job", "list")["jobs"] == []
    result = finished.run("-o", "json", "job", "get", "gpt")
    assert result.returncode == 1
    assert json.loads(result.stdout)["error"]["code"] == "not_found"


def test_peer_verbs(finished):
    peers = finished.weft_json("peer", "list")["peers"]
    assert len(peers) == 3 and all(p["spare"] for p in peers)
    one = finished.weft_json("peer", "get", peers[0]["id"])
    assert one["cores"] >= 1 and one["device"] == "cpu" and one["memory_bytes"] > 0
    assert peers[0]["id"] in finished.weft("peer", "list").stdout
    assert finished.weft("peer", "invite", "--uses", "2").stdout.startswith("weft://")
    assert finished.run("peer", "get", "p-nobody").returncode == 1
    links = finished.weft_json("link", "list", peers[0]["id"], peers[1]["id"])
    # Nobody is asked to measure here: what there is follows from peers of one address, or from the job's messages.
    assert links["lines"] == [] and links["inferred"] and len(links["links"]) == 2
    for link in links["links"]:
        assert link["known_by"] == ("work" if link["measured"] else "inference"), link
    assert "FROM" in finished.weft("link", "list").stdout
    nobody = finished.run("link", "list", "p-nobody")
    assert nobody.returncode == 1 and "p-nobody" in nobody.stderr


def test_finished_job_goes_on_with_more_steps(finished):
    finished.weft("job", "resume", "gpt", "--steps", "6", "--stages", "3", "--watch")
    job = finished.job("gpt")
    assert job["state"] == "finished" and job["step"] == 6 and job["stages"] == 3


def test_init_and_frozen_parameters(finished):
    start = os.path.join(finished.folder, "start.safetensors")
    finished.weft("checkpoint", "export", "gpt", "--out", start)
    job = harness.gpt_job(finished.folder, "tuned", steps=3)
    with open(job, encoding="utf-8") as file:
        text = file.read()
    with open(job, "w", encoding="utf-8") as file:
        file.write(f'init = "{start}"\n{text}\n[[group]]\nmatch = "transformer.h.0.*"\nfrozen = true\n')
    finished.weft("job", "submit", job, "--watch")
    out = os.path.join(finished.folder, "tuned.safetensors")
    finished.weft("checkpoint", "export", "tuned", "--out", out)
    before, after = load_file(start), load_file(out)
    assert before.keys() == after.keys()
    for name, value in before.items():
        frozen = name.startswith("transformer.h.0.")
        assert torch.equal(value, after[name]) == frozen, name
    assert finished.job("tuned")["first_loss"] < finished.job("gpt")["first_loss"]


def test_half_precisions_and_sgd_and_gpipe(cluster):
    cluster.start_peers(2)
    for name, keys in [("bf16", 'precision = "bf16"'),
                       ("fp16", 'precision = "fp16"\nloss_scale = { init = 1024.0 }'),
                       ("clipped", 'clip_norm = 0.1\nschedule = "linear"\nwarmup_steps = 2')]:
        job = harness.gpt_job(cluster.folder, name, steps=6, schedule="gpipe", train=keys)
        cluster.weft("job", "submit", job, "--watch")
        done = cluster.job(name)
        assert done["state"] == "finished" and done["loss"] < done["first_loss"]
        last = cluster.weft_json("job", "metrics", name)["steps"][-1]
        assert last.get("loss_scale") == (1024 if name == "fp16" else None), last
        cluster.wait_idle(2)


def test_dry_run_starts_nothing_and_warns_of_a_double_shift(cluster):
    cluster.start_peers(2)
    job = harness.gpt_job(cluster.folder)
    with open(job, encoding="utf-8") as file:
        text = file.read()
    with open(job, "w", encoding="utf-8") as file:
        file.write(text.replace('labels = "tokens"', 'labels = "next_tokens"'))
    result = cluster.weft("job", "submit", job, "--dry-run")
    assert "shifted twice" in result.stderr and "plan:" in result.stdout
    assert cluster.weft_json("job", "list")["jobs"] == []


def test_eval_mode_export_warns(cluster):
    cluster.start_peers(1)
    model = os.path.join(cluster.folder, "eval.pt2")
    harness.python("examples/export_gpt.py", "--out", model, *harness.TINY_GPT, "--dropout", "0.1",
                   "--eval")
    job = harness.gpt_job(cluster.folder, model=model, stages=1)
    assert "eval mode" in cluster.weft("job", "submit", job, "--dry-run").stderr


def test_separate_eval_model(cluster):
    cluster.start_peers(3)
    train = os.path.join(cluster.folder, "dropout.pt2")
    evaluate = os.path.join(cluster.folder, "eval.pt2")
    dropout = [*harness.TINY_GPT, "--dropout", "0.1"]
    harness.python("examples/export_gpt.py", "--out", train, *dropout)
    harness.python("examples/export_gpt.py", "--out", evaluate, *dropout, "--eval")
    losses = []
    for name, extra in [("derived", ""), ("separate", f'eval_model = "{evaluate}"\n')]:
        job = harness.gpt_job(cluster.folder, name, model=train, stages=3, steps=3)
        with open(job, encoding="utf-8") as file:
            text = file.read()
        with open(job, "w", encoding="utf-8") as file:
            file.write(extra + text)
        cluster.weft("job", "submit", job, "--watch")
        losses.append(cluster.job(name)["eval_loss"])
        cluster.wait_idle(3)
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
