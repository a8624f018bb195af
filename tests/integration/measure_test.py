"""Daemons that measure their device: the profile in `weft peer get`, kept, and never in a job's way."""
import json
import os
import signal
import subprocess
import time

import pytest

import harness

WORKER = os.path.join(harness.BIN, "weft-worker")


@pytest.fixture
def measuring(folder):
    with harness.Cluster(folder, measure=True) as running:
        yield running


def profile_of(cluster, name):
    return cluster.weft_json("peer", "get", cluster.peer_ids[name])["profile"]


def test_the_worker_prints_a_profile():
    start = time.monotonic()
    ended = subprocess.run([WORKER, "measure", "--device", "cpu", "--threads", "1", "--seconds", "8"],
                           capture_output=True, text=True, timeout=120, check=True)
    assert time.monotonic() - start < 60
    lines = ended.stdout.splitlines()
    assert len(lines) == 1
    profile = json.loads(lines[0])
    assert profile["device"] == "cpu" and profile["memory_free_bytes"] > 0
    for precision in ("fp32", "bf16"):
        for name in ("matrix", "convolution", "attention", "elementwise", "norm"):
            for direction in ("forward", "backward"):
                cost = profile[precision][name][direction]
                assert cost["op_us"] >= 0 and (cost["gflops"] is None or cost["gflops"] > 0)
    wrong = subprocess.run([WORKER, "measure", "--device", "abacus"], capture_output=True, text=True,
                           timeout=120, check=False)
    assert wrong.returncode == 1 and "abacus" in wrong.stderr


def test_a_killed_measurement_does_not_hurt_and_a_job_ends_one(measuring):
    cluster = measuring
    cluster.start_peer("peer-0")
    cluster.wait_idle(1)
    # Killed: told in the log, the daemon serves on.
    os.kill(cluster.worker_of("peer-0"), signal.SIGKILL)
    harness.wait_for("a warning", lambda: "could not be measured" in cluster.log_of("peer-0"), 20)
    cluster.start_peer("peer-1")
    cluster.wait_idle(2)
    measuring_pid = cluster.worker_of("peer-1")
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, "gpt", stages=2, steps=5))
    cluster.wait_job("gpt", ["running", "finished"])
    assert not harness.alive(measuring_pid)
    assert "measuring is put off" in cluster.log_of("peer-1")
    cluster.wait_job("gpt", ["finished"])
    # Idle again: measured after all, shown, kept over a restart of the broker.
    try:
        profile = harness.wait_for("a profile of peer-1", lambda: profile_of(cluster, "peer-1"), 120)
    except AssertionError as late:
        raise AssertionError(f"{late}; its log: {cluster.log_of('peer-1')[-3000:]}") from late
    assert profile["fp32"]["matrix"]["samples"] > 3
    assert profile["device_name"]
    kept = os.listdir(os.path.join(cluster.folder, "peer-1", "profiles"))
    assert any(name.startswith("profile-") for name in kept)
    cluster.kill("broker")
    cluster.restart_broker()
    assert profile_of(cluster, "peer-1") == profile
    # Planned with, and corrected by what real steps took.
    cluster.wait_idle(2)
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, "again", stages=1, steps=12))
    cluster.wait_job("again", ["finished"])
    corrections = [cluster.weft_json("peer", "get", i)["correction"]
                   for i in cluster.peer_ids.values()]
    plan = cluster.weft_json("job", "explain", "again")["plan"]
    ran = plan["stages"][0]["replicas"][0]
    measured = ran == cluster.peer_ids["peer-1"]
    assert plan["stages"][0]["compute_s"] > 0 or not measured
    assert any(c["steps"] > 5 and 0.1 < c["factor"] < 8.1 for c in corrections) == measured
