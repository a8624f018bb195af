"""Real weft-worker processes on loopback: the test is their daemon."""
import hashlib
import json
import math
import os
import queue
import signal
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
pytestmark = pytest.mark.skipif(not os.path.exists(WORKER), reason=f"{WORKER} is not built")


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
    """K workers of one job."""

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
                "work_dir": str(work_dir), "device": DEVICE, "threads": 1,
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("worker")


def export_gpt(path, *more):
    run(sys.executable, os.path.join(SOURCE, "examples", "export_gpt.py"), "--layers", "2",
        "--width", "32", "--heads", "2", "--sequence", "16", "--batch", "2", "--vocab", "64",
        "--dropout", "0.1", "--out", str(path), *more)


@pytest.fixture(scope="module")
def model(folder):
    path = folder / "gpt.pt2"
    export_gpt(path)
    return path


@pytest.fixture(scope="module")
def data(folder):
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


@pytest.fixture(scope="module")
def alone(folder, model, data):
    return run_job(job("alone", 12, eval_every=6), 1, folder, model, data=data)


def test_one_stage_learns(alone):
    losses = alone.losses()
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.3
    assert len(alone.evals()) == 2


@pytest.mark.parametrize("stages,schedule", [(2, "1f1b"), (3, "gpipe")])
def test_stages_equal_one(folder, model, data, alone, stages, schedule):
    spec = job(f"cut-{schedule}", 12, eval_every=6)
    cut = run_job(spec, stages, folder, model, data=data, schedule=schedule)
    assert cut.losses() == pytest.approx(alone.losses(), rel=1e-10)
    assert cut.evals() == pytest.approx(alone.evals(), rel=1e-10)
    assert any(event["edge_bytes"] for event in cut.workers[0].all_of("step"))


def test_a_separately_exported_eval_model(folder, model, data, alone):
    """Evaluation runs the module as exported in eval mode; its weights are the trained ones."""
    evaluated = folder / "gpt_eval.pt2"
    export_gpt(evaluated, "--eval")
    cut = run_job(job("eval-model", 12, eval_every=6), 3, folder, model, data=data,
                  eval_model=evaluated)
    assert cut.evals() == pytest.approx(alone.evals(), rel=1e-10)


def test_resume_with_another_number_of_stages(folder, model, data, alone):
    # The schedule of rates does not depend on the number of steps: constant.
    first = run_job(job("resumed", 5), 3, folder, model, data=data)
    second = run_job(job("resumed", 12), 2, folder, model, data=data, resume_step=5,
                     shards=first.shards())
    assert first.losses() + second.losses() == pytest.approx(alone.losses(), rel=1e-10)


def test_stop_ends_with_0_and_a_lost_daemon_ends_too(folder, model, data):
    cluster = Cluster(job("stopped", 100000), 2, folder, model, data=data)
    try:
        cluster.start()
        cluster.workers[0].wait_for("step")
        cluster.workers[0].say({"type": "stop", "reason": "test"})
        assert cluster.workers[0].wait_exit(5) == 0
        cluster.workers[1].process.stdin.close()
        assert cluster.workers[1].wait_exit(5) == 1
    finally:
        cluster.kill()


def test_signals_of_the_group_do_not_end_it(folder, model, data):
    """^C in a terminal and `systemctl stop` reach daemon and worker: only the daemon may decide."""
    cluster = Cluster(job("signalled", 100000), 1, folder, model, data=data)
    worker = cluster.workers[0]
    try:
        cluster.start()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(worker.process.pid, number)
        for _ in range(3):
            worker.wait_for("step")
        worker.process.stdin.close()
        assert worker.wait_exit(5) == 1
    finally:
        cluster.kill()


def test_a_killed_neighbour_is_named(folder, model, data):
    cluster = Cluster(job("killed", 100000), 2, folder, model, data=data, link_timeout_ms=2000)
    try:
        cluster.start()
        cluster.workers[0].wait_for("step")
        os.kill(cluster.workers[1].process.pid, signal.SIGKILL)
        with pytest.raises(AssertionError, match="failed"):
            cluster.workers[0].wait_for("finished", seconds=20)
        event = cluster.workers[0].seen[-1]
        assert "stage 1" in event["message"] and "peer-1" in event["message"], event
        assert cluster.workers[0].wait_exit(10) == 1
    finally:
        cluster.kill()


def test_a_failing_stage_tells_its_neighbours_why(folder, model, data):
    """Stage 0 fails by itself when it loads; stage 1 learns the reason at once, not by a timeout."""
    cluster = Cluster(job("failing", 100), 2, folder, model, data=data, link_timeout_ms=60000,
                      break_stage=0)
    try:
        ports = [worker.wait_for("listening")["port"] for worker in cluster.workers]
        stages = [{"stage": i, "peer": f"peer-{i}", "host": "127.0.0.1", "port": port}
                  for i, port in enumerate(ports)]
        for worker in cluster.workers:
            worker.say({"type": "connect", "stages": stages})
        cluster.workers[1].wait_for("ready")
        cluster.workers[1].say({"type": "start"})
        with pytest.raises(AssertionError, match="failed"):
            cluster.workers[1].wait_for("finished", seconds=20)
        assert "names no file for weight" in cluster.workers[1].seen[-1]["message"]
        assert cluster.workers[1].wait_exit(10) == 1
    finally:
        cluster.kill()


def test_a_stage_resumes_from_the_shards_it_needs(folder, model, data, alone):
    """The same cut: each stage is given its own shard and that of the tied weight's owner."""
    first = run_job(job("own-shards", 5), 3, folder, model, data=data)
    shards = first.shards()
    second = run_job(job("own-shards", 12), 3, folder, model, data=data, resume_step=5,
                     shards_of=lambda stage: [shards[i] for i in sorted({0, stage})])
    assert first.losses() + second.losses() == pytest.approx(alone.losses(), rel=1e-10)


def test_a_missing_shard_is_named(folder, model, data):
    first = run_job(job("lost-shard", 5), 3, folder, model, data=data)
    shards = first.shards()
    cluster = Cluster(job("lost-shard", 12), 3, folder, model, data=data, resume_step=5,
                      shards_of=lambda stage: shards[:1])
    try:
        with pytest.raises(AssertionError, match="failed"):
            cluster.start()
        event = next(w.seen[-1] for w in cluster.workers if w.seen[-1]["type"] == "failed")
        assert "have no tensor" in event["message"], event
    finally:
        cluster.kill()


def test_checkpoints_load_strictly_into_a_module_with_an_unused_head(folder, data):
    import torch
    from safetensors.torch import load_file
    from torch import nn

    class WithHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(64, 16), nn.BatchNorm1d(16)
            self.out, self.unused = nn.Linear(16, 64), nn.Linear(16, 3)
            self.register_buffer("version", torch.tensor(7))

        def forward(self, input_ids, labels):
            h = self.norm(self.embed(input_ids).flatten(0, 1))
            loss = nn.functional.cross_entropy(self.out(h), labels.flatten())
            return {"loss": loss, "other": self.unused(h)}

    torch.manual_seed(4)
    model, tokens = WithHead().train(), torch.randint(64, (2, 16))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    path = folder / "head.pt2"
    torch.export.save(torch.export.export(model, (), {"input_ids": tokens, "labels": tokens}), path)
    trained = run_job(job("head", 3, precision="fp32"), 2, folder, path, data=data)
    merged = {}
    for shard in trained.shards():
        merged.update(load_file(shard["path"]))
    state = {k: v for k, v in merged.items() if not k.startswith("weft.")}
    model.load_state_dict(state, strict=True)
    assert torch.equal(state["unused.weight"], before["unused.weight"])
    assert not torch.equal(state["out.weight"], before["out.weight"])
    assert state["norm.num_batches_tracked"] == 3 * 4 and state["version"] == 7


def test_a_bad_assignment_is_refused():
    worker = Worker({"job": "x"})
    with pytest.raises(AssertionError, match="failed"):
        worker.wait_for("ready", seconds=20)
    assert worker.wait_exit(10) == 2
