"""Real weft-worker processes of one job on loopback: the test is their daemon."""
import hashlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time

import numpy
import pytest

SOURCE = os.environ.get("WEFT_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
BIN = os.environ.get("WEFT_BIN_DIR", os.path.join(SOURCE, "build", "bin"))
WORKER = os.path.join(BIN, "weft-worker")
DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
DEADLINE_S = 180


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


def blob(path):
    with open(path, "rb") as file:
        data = file.read()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "path": str(path)}


class Authority:
    def __init__(self, folder):
        self.folder = folder
        self.ca, self.key = folder / "ca.pem", folder / "ca.key"
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", str(self.key), "-out", str(self.ca), "-days", "2",
            "-subj", "/CN=test ca")

    def issue(self, peer, job, epoch, stage):
        base = self.folder / f"{job}-{epoch}-{stage}-{peer}"
        key, request, certificate = f"{base}.key", f"{base}.csr", f"{base}.pem"
        subject = f"/CN={peer}/O=worker/OU=job={job}/OU=epoch={epoch}/OU=stage={stage}"
        run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", key, "-out", request, "-subj", subject)
        run("openssl", "x509", "-req", "-in", request, "-CA", str(self.ca), "-CAkey",
            str(self.key), "-CAcreateserial", "-out", certificate, "-days", "2")
        return certificate, key


class Worker:
    """One process; its events arrive in a queue, the last one is None."""

    def __init__(self, spec):
        self.process = subprocess.Popen([WORKER, "run"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.events, self.seen = queue.Queue(), []
        threading.Thread(target=self._read, daemon=True).start()
        self.say(spec)

    def _read(self):
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put(None)

    def say(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def wait_for(self, *kinds, seconds=DEADLINE_S):
        end = time.monotonic() + seconds
        while True:
            event = self.events.get(timeout=max(0.01, end - time.monotonic()))
            assert event is not None, f"the worker ended before {kinds}: {self.seen[-3:]}"
            self.seen.append(event)
            if event["type"] in kinds:
                return event
            assert event["type"] != "failed", event

    def wait_exit(self, seconds=30):
        return self.process.wait(timeout=seconds)

    def all_of(self, kind):
        return [event for event in self.seen if event["type"] == kind]


class Cluster:
    """K workers of one job; `devices`: of the stages, in turn."""

    def __init__(self, job, stages, folder, model, **changes):
        self.folder = folder / f"{job['name']}-{stages}-{changes.get('resume_step', 0)}"
        self.prepared = self.folder / "prepared"
        run(WORKER, "prepare", str(model), "--out", str(self.prepared), "--stages", str(stages),
            "--schedule", changes.get("schedule", "1f1b"),
            *(["--eval-model", str(changes["eval_model"])] if "eval_model" in changes else []))
        with open(self.prepared / "plan.json") as file:
            described = json.load(file)
        authority = Authority(folder) if not (folder / "ca.pem").exists() else None
        if authority is None:
            authority = Authority.__new__(Authority)
            authority.folder, authority.ca, authority.key = (
                folder, folder / "ca.pem", folder / "ca.key")
        self.workers = []
        devices = changes.get("devices", [DEVICE])
        for stage in range(stages):
            certificate, key = authority.issue(f"peer-{stage}", job["name"], 1, stage)
            work_dir = self.folder / f"work-{stage}"
            work_dir.mkdir(parents=True)
            spec = {
                "job": job["name"], "stage": stage, "replica": 0, "spec": job,
                "plan": described["plan"], "graph": blob(self.prepared / "graph.txt"),
                "eval_graph": blob(self.prepared / "eval.txt"),
                "weights": {p: blob(self.prepared / p) for p in described["weights"]},
                "init": {"sha256": "", "bytes": 0, "path": ""},
                "data": changes["data"], "token_dtype": "uint16",
                "resume": {"step": changes.get("resume_step", 0),
                           "shards": changes["shards_of"](stage) if "shards_of" in changes
                           else changes.get("shards", [])},
                "work_dir": str(work_dir), "device": devices[stage % len(devices)], "threads": 1,
                "listen_host": "127.0.0.1", "listen_port": 0, "certificate_path": certificate,
                "key_path": key, "ca_path": str(authority.ca),
                "link_timeout_ms": changes.get("link_timeout_ms", 15000),
            }
            if changes.get("break_stage") == stage:
                spec["weights"] = {}
            self.workers.append(Worker(spec))

    def start(self):
        ports = [worker.wait_for("listening")["port"] for worker in self.workers]
        stages = [{"stage": i, "peer": f"peer-{i}", "host": "127.0.0.1", "port": port}
                  for i, port in enumerate(ports)]
        for worker in self.workers:
            worker.say({"type": "connect", "stages": stages})
        for worker in self.workers:
            worker.wait_for("ready")
        for worker in self.workers:
            worker.say({"type": "start"})

    def finish(self):
        for worker in self.workers:
            worker.wait_for("finished")
        for worker in self.workers:
            assert worker.wait_exit() == 0

    def losses(self):
        found = [[e["loss"] for e in w.all_of("step")] for w in self.workers]
        known = [x for x in found if x and isinstance(x[0], float) and not math.isnan(x[0])]
        assert len(known) == 1, "one stage knows the loss"
        return known[0]

    def evals(self):
        return [e["loss"] for w in self.workers for e in w.all_of("eval")]

    def shards(self):
        return [blob(w.all_of("checkpoint")[-1]["path"]) for w in self.workers]

    def kill(self):
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()


def export_gpt(path, *more):
    run(sys.executable, os.path.join(SOURCE, "examples", "export_gpt.py"), "--layers", "2",
        "--width", "32", "--heads", "2", "--sequence", "16", "--batch", "2", "--vocab", "64",
        "--dropout", "0.1", "--out", str(path), *more)


def token_files(folder):
    refs = {}
    for split, count in (("train", 4000), ("eval", 300)):
        path = folder / f"{split}.bin"
        ((numpy.arange(count) * 7 + numpy.arange(count) // 11) % 64).astype("uint16").tofile(path)
        refs[split] = blob(path)
    return refs


def job(name, steps, **train):
    return {
        "name": name, "model": "gpt.pt2", "loss": "graph",
        "data": {"train": "train.bin", "eval": "eval.bin",
                 "bind": {"input_ids": {"column": "tokens"}, "labels": {"column": "tokens"}}},
        "train": {"steps": steps, "batch": 8, "optimizer": "adamw", "lr": 0.01,
                  "weight_decay": 0.1, "clip_norm": 1.0, "precision": "fp64", "seed": 3,
                  "eval_batches": 4, **train},
    }


def run_job(spec, stages, folder, model, **changes):
    cluster = Cluster(spec, stages, folder, model, **changes)
    try:
        cluster.start()
        cluster.finish()
    finally:
        cluster.kill()
    return cluster


# Fixtures: a module's folder with the tiny model and its tokens.
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("worker")


@pytest.fixture(scope="module")
def model(folder):
    path = folder / "gpt.pt2"
    export_gpt(path)
    return path


@pytest.fixture(scope="module")
def data(folder):
    return token_files(folder)
