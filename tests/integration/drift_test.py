"""A job whose peer falls behind moves to another plan: simulated, and with real processes."""
import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time

import harness
from harness import BIN

EXAMPLES = os.path.join(harness.ROOT, "examples", "simulate")


def example(name, edit=lambda text: text):
    with open(os.path.join(EXAMPLES, name), encoding="utf-8") as file:
        return edit(file.read())


def play(folder, text):
    path = os.path.join(folder, "scenario.toml")
    trace = os.path.join(folder, "trace.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    run = subprocess.run([os.path.join(BIN, "weft"), "simulate", path, "-o", "json", "--trace", trace],
                         capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    with open(trace, encoding="utf-8") as file:
        told = [e["name"] for e in json.load(file)["traceEvents"] if e["ph"] == "i"]
    outcome = json.loads(run.stdout)
    assert all(job["phase"] == "finished" for job in outcome["jobs"]), outcome["jobs"]
    return outcome, told


def never(text):
    return text.replace("[[job]]\n", '[[job]]\nreplan = "never"\n')


def test_a_job_leaves_a_peer_that_slows_down_and_ends_sooner(tmp_path):
    moved, told = play(tmp_path, example("slow_peer.toml"))
    again, _ = play(tmp_path, example("slow_peer.toml"))
    stayed, _ = play(tmp_path, example("slow_peer.toml", never))
    assert moved["migrations"] == 1 and moved["steps_lost"] == 0 and moved["recoveries"] == 0
    assert moved["jobs"][0]["failures"] == 0 and moved["jobs"][0]["deployments"] == 2
    assert stayed["migrations"] == stayed["replans"] == 0
    assert moved["ended_s"] < 0.5 * stayed["ended_s"]
    assert moved["hash"] == again["hash"] and moved["hash"] != stayed["hash"]
    reason = next(t for t in told if t.startswith("migration"))
    assert "s a step predicted instead of" in reason and "to fetch" in reason, reason


def test_a_move_that_costs_more_than_it_saves_is_not_made(tmp_path):
    stayed, told = play(tmp_path, example("costly_move.toml"))
    fixed, _ = play(tmp_path, example("costly_move.toml", never))
    assert stayed["migrations"] == 0 and stayed["replans"] > 0
    assert stayed["ended_s"] == fixed["ended_s"] and stayed["hash"] == fixed["hash"]
    kept = [t for t in told if t.startswith("keep")]
    assert len(kept) == stayed["replans"]
    assert any("would not pay" in t and "to store a checkpoint" in t for t in kept), kept


def test_a_peer_that_comes_and_goes_is_not_followed_each_time(tmp_path):
    def wavering(text):
        text = re.sub("^share = 0.1.*", "share = 0.1\nfor_s = 120\nevery_s = 300\ntimes = 60", text, flags=re.M)
        return text.replace("steps = 1500", "steps = 12000")
    moved, _ = play(tmp_path, example("slow_peer.toml", wavering))
    stayed, _ = play(tmp_path, never(example("slow_peer.toml", wavering)))
    assert moved["ended_s"] > 20 * 300, "it slows down more than twenty times"
    assert 1 <= moved["migrations"] <= 5
    assert moved["ended_s"] < 0.85 * stayed["ended_s"]


# Two fast peers of two sites, and a slow one beside one of them.
TWO_SITES = """seed = 5
[broker]
up_mbit_s = 1000
down_mbit_s = 1000
[[site]]
name = "a"
latency_ms = 0.2
bandwidth_mbit_s = 1000
[[site]]
name = "b"
latency_ms = 0.2
bandwidth_mbit_s = 1000
[[link]]
latency_ms = 1
bandwidth_mbit_s = 5000
[[peers]]
name = "left"
site = "a"
memory_gib = 3
gflops = 20000
memory_gbyte_s = 600
[[peers]]
name = "right"
site = "b"
memory_gib = 3
gflops = 20000
memory_gbyte_s = 600
[[peers]]
name = "small"
site = "a"
memory_gib = 3
gflops = 4000
memory_gbyte_s = 200
[[slowdown]]
from = "a"
to = "b"
at_s = 60
share = 0.01
[[job]]
name = "gpt"
steps = 4000
batch = 16
stages = 2
checkpoint_every = 100
[job.transformer]
layers = 12
width = 768
heads = 12
tokens = 512
vocabulary = 32000
micro_batch = 1
"""


def test_a_way_that_gets_worse_is_left_for_a_slower_peer(tmp_path):
    moved, told = play(tmp_path, TWO_SITES)
    stayed, _ = play(tmp_path, never(TWO_SITES))
    assert any(t.startswith("slowdown: a and b") for t in told)
    assert moved["migrations"] == 1 and moved["steps_lost"] == 0
    assert moved["ended_s"] < 0.5 * stayed["ended_s"]


def test_what_slows_down_must_exist(tmp_path):
    for wrong, said in (('[[slowdown]]\npeers = "fats"\n', 'the peers "fats"'),
                        ('[[slowdown]]\nfrom = "a"\nto = "c"\n', '"c", which is none'),
                        ('[[site]]\nname = "c"\n[[slowdown]]\nfrom = "c"\nto = "c"\n', "no bandwidth_mbit_s"),
                        ('[[slowdown]]\nat_s = 3\n', "either peers, or from and to"),
                        ('[[slowdown]]\npeers = "left"\ntimes = 3\n', "several times need")):
        path = os.path.join(tmp_path, "wrong.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(TWO_SITES + wrong)
        run = subprocess.run([os.path.join(BIN, "weft"), "simulate", path], capture_output=True, text=True,
                             timeout=120, check=False)
        assert run.returncode != 0 and said in run.stderr, (said, run.stderr)


# ---- real processes

PEERS = "".join(f'[[peer]]\nid = "peer-{i}"\ngflops = 45\nop_us = 7\n' for i in range(3))


class Throttle:
    """Stops a process for most of every 50 ms, less than it computes in a step: as a machine does
    that has other work."""

    PERIOD_S = 0.05

    def __init__(self, pid, share):
        self.pid, self.share, self.end = pid, share, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        with contextlib.suppress(ProcessLookupError):
            while not self.end.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                self.end.wait(self.PERIOD_S * (1 - self.share))
                os.kill(self.pid, signal.SIGCONT)
                self.end.wait(self.PERIOD_S * self.share)

    def stop(self):
        self.end.set()
        self.thread.join()


def losses(cluster, name):
    steps = cluster.weft_json("job", "metrics", name)["steps"]
    return {s["step"]: s["loss"] for s in steps}


def test_a_running_job_moves_and_loses_no_step(folder):
    """Three peers, two with the job; the worker of one computes a tenth of the time."""
    steps = 300
    known = os.path.join(folder, "peers.toml")
    with open(known, "w", encoding="utf-8") as file:
        file.write(PEERS)
    flags = ("--peers-file", known, "--replan-ms", "2000", "--replan-glance-ms", "1000")
    with harness.Cluster(folder, broker_flags=flags) as cluster:
        cluster.start_peers(3)
        job = harness.gpt_job(folder, "gpt", stages=2, steps=steps, batch=128)
        cluster.weft("job", "submit", job)
        cluster.wait_step("gpt", 30)
        before = cluster.job("gpt")
        assert before["epoch"] == 1
        names = {v: k for k, v in cluster.peer_ids.items()}
        slowed = before["peers"][0]
        throttle = Throttle(cluster.worker_of(names[slowed]), 0.1)
        try:
            def moved():
                now = cluster.job("gpt")
                assert now["state"] in ("running", "queued", "deploying"), now
                return now if now["epoch"] > 1 and now["state"] == "running" else None
            began = time.monotonic()
            after = harness.wait_for("the move", moved, 180)
            print(f"moved {time.monotonic() - began:.1f} s after the peer slowed down, at step {after['step']}")
        finally:
            throttle.stop()
        assert slowed not in after["peers"]
        ended = cluster.wait_job("gpt", ["finished"], 240)
        assert ended["step"] == steps
        told = cluster.weft_json("job", "explain", "gpt")["decisions"]
        kinds = [d["decision"] for d in told]
        # Other work on this machine may make it move again: never otherwise than by a move.
        assert kinds.count("migrate") == ended["epoch"] - 1 >= 1, told
        assert not {"fail", "resume", "fall back"} & set(kinds), told
        assert "s a step predicted instead of" in next(d["reason"] for d in told if d["decision"] == "migrate")
        # An undisturbed run on the peers that are there.
        cluster.wait_idle(3)
        with open(job, encoding="utf-8") as file:
            text = file.read()
        quiet = os.path.join(folder, "quiet.toml")
        with open(quiet, "w", encoding="utf-8") as file:
            file.write(text.replace('"gpt"', '"quiet"', 1) + 'replan = "never"\n')
        cluster.weft("job", "submit", quiet)
        cluster.wait_job("quiet", ["finished"], 240)
        assert cluster.job("quiet")["epoch"] == 1
        mine, theirs = losses(cluster, "gpt"), losses(cluster, "quiet")
        assert sorted(mine) == list(range(1, steps + 1)), "every step once"
        assert mine == theirs
        assert cluster.job("gpt")["eval_loss"] == cluster.job("quiet")["eval_loss"]
