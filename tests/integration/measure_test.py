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


def costs(gflops):
    passes = {"op_us": 1e-3, "gflops": gflops, "gbyte_s": gflops, "error": 0.1}
    return {name: {"forward": passes, "backward": passes, "samples": 5} for name in ("matrix", "elementwise")}


def profile_text(gflops):
    return json.dumps({"format": 1, "device": "cpu", "threads": 1, "seconds": 1, "memory_total_bytes": 1 << 30,
                       "memory_free_bytes": 1 << 29, "fp32": costs(gflops), "bf16": costs(gflops)})


def test_a_profile_that_real_runs_disagree_with_is_measured_again(measuring):
    cluster = measuring
    told = os.path.join(cluster.folder, "told.json")
    worker = os.path.join(cluster.folder, "worker.sh")
    with open(worker, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\n[ "$1" = measure ] && exec cat {told}\nexec {WORKER} "$@"\n')
    os.chmod(worker, 0o755)

    def next_measurement_says(gflops):
        with open(told, "w", encoding="utf-8") as file:
            file.write(profile_text(gflops) + "\n")

    def peer():
        return cluster.weft_json("peer", "get", cluster.peer_ids["peer-0"])

    next_measurement_says(1e5)  # no machine of these tests is that fast
    cluster.start_peer("peer-0", flags=["--worker", worker])
    cluster.wait_idle(1)
    boast = harness.wait_for("the profile", lambda: peer()["profile"], 20)
    assert abs(boast["measured_ms"] / 1000 - time.time()) < 60
    next_measurement_says(2e4)
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, "gpt", stages=1, steps=40))
    cluster.wait_job("gpt", ["running"])
    assert "measured again" not in cluster.log_of("peer-0")
    cluster.wait_job("gpt", ["finished"])
    again = harness.wait_for("another profile", lambda: peer()["profile"]["measured_ms"] > boast["measured_ms"] and
                             peer(), 20)
    assert again["profile"]["fp32"]["matrix"]["forward"]["gflops"] == 2e4
    # A fifth of the speed, so a fifth of the factor, which was as large as factors become.
    assert again["correction"]["steps"] == 5 and 1.3 < again["correction"]["factor"] <= 1.61
    assert "is measured again when idle: real steps take" in cluster.log_of("peer-0")
    assert "times as fast as before" in cluster.log_of("broker")
    assert " ago in 1.0 s with 1 threads" in cluster.weft("peer", "get", again["id"]).stdout
    kept, = (name for name in os.listdir(os.path.join(cluster.folder, "peer-0", "profiles"))
             if name.startswith("profile-"))
    with open(os.path.join(cluster.folder, "peer-0", "profiles", kept), encoding="utf-8") as file:
        assert json.load(file) == again["profile"]
    # Not asked again within the hour, whatever runs say.
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, "more", stages=1, steps=40))
    cluster.wait_job("more", ["finished"])
    cluster.wait_idle(1)
    assert peer()["profile"] == again["profile"]
    assert cluster.log_of("broker").count("is asked to measure itself again") == 1


def test_the_memory_that_others_leave_is_shown(cluster):
    cluster.start_peers(1)
    peer = cluster.weft_json("peer", "get", cluster.peer_ids["peer-0"])
    assert peer["memory_bytes"] * 0.01 < peer["free_memory_bytes"] <= peer["memory_bytes"]
    shown = dict(line.split(None, 1) for line in cluster.weft("peer", "get", peer["id"]).stdout.splitlines()
                 if len(line.split(None, 1)) == 2)
    assert " of " in shown["memory"] and "free" in shown["memory"], shown
