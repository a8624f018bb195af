"""Real weft-worker processes on loopback, each with its own fate."""
import os
import signal

import pytest

from worker_cluster import (WORKER, Cluster, Worker, data, export_gpt, folder, job, model,  # noqa: F401
                            run_job)

pytestmark = pytest.mark.skipif(not os.path.exists(WORKER), reason=f"{WORKER} is not built")


@pytest.fixture(scope="module")
def alone(folder, model, data):
    return run_job(job("alone", 12, eval_every=6), 1, folder, model, data=data)


def test_one_stage_learns(alone):
    losses = alone.losses()
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.3
    assert len(alone.evals()) == 2


@pytest.mark.parametrize("stages,schedule", [(2, "1f1b"), (3, "gpipe"), (3, "zb-h1")])
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
        # Stage 0 may have failed before stage 1 is ready.
        if cluster.workers[1].wait_for("ready", "failed")["type"] == "ready":
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
