"""Real, jailed weft-worker processes on cards: two that share one, and one each on two.

What they compute is what one worker on one card computes: 1e-9 relative in float64 (cuBLAS may
choose other kernels for other calls), 2e-3 with fp16.
WEFT_TEST_CARDS names devices instead of the cards torch sees: cpu,cpu runs the tests without any.
"""
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

from worker_cluster import WORKER, data, folder, job, model, run_job  # noqa: E402,F401


def cards():
    named = os.environ.get("WEFT_TEST_CARDS", "")
    if named:
        return named.split(",")
    import torch

    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


CARDS = cards()
pytestmark = [
    pytest.mark.skipif(not os.path.exists(WORKER), reason=f"{WORKER} is not built"),
    pytest.mark.skipif(not CARDS, reason="torch sees no card: scripts/gpu_check.sh runs these"),
]
# Devices of the stages, by what the test is called.
PLACES = {
    "two_on_one_card": [0, 0],
    "one_each_on_two_cards": [0, 1],
    "three_on_two_cards": [0, 1, 0],
}
PRECISIONS = {"fp64": 1e-9, "fp16": 2e-3}


@pytest.fixture(scope="module")
def alone(folder, model, data):
    """One worker on one card, by precision."""
    return {precision: run_job(job(f"alone-{precision}", 12, eval_every=6, precision=precision), 1,
                               folder, model, data=data, devices=CARDS[:1])
            for precision in PRECISIONS}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("place", PLACES)
def test_workers_equal_one(folder, model, data, alone, place, precision):
    where = PLACES[place]
    if max(where) >= len(CARDS):
        pytest.skip(f"needs {max(where) + 1} cards, torch sees {len(CARDS)}")
    devices = [CARDS[i] for i in where]
    spec = job(f"{place}-{precision}".replace("_", "-"), 12, eval_every=6, precision=precision)
    cut = run_job(spec, len(devices), folder, model, data=data, devices=devices)
    tolerance = PRECISIONS[precision]
    losses, expected = cut.losses(), alone[precision].losses()
    worst = max(abs(a / b - 1) for a, b in zip(losses, expected))
    print(f"{devices} {precision}: losses differ from one worker's by {worst:.2g}")
    assert losses == pytest.approx(expected, rel=tolerance)
    assert cut.evals() == pytest.approx(alone[precision].evals(), rel=tolerance)
    assert losses[-1] < losses[0] - 0.3
    # What a card was busy for is told a step late, and less than the steps took in all.
    for worker in cut.workers + alone[precision].workers:
        told = [(e["compute_s"], e["seconds"]) for e in worker.all_of("step")]
        assert all(compute >= 0 for compute, _ in told)
        half, late = len(told) // 2, int(CARDS[0] != "cpu")
        computed = sum(compute for compute, _ in told[half:])
        took = sum(seconds for _, seconds in told[half - late:len(told) - late])
        assert 0.02 * took < computed < 1.1 * took, (computed, took, told)
    steps = [[(e["loss_scale"], e["skipped_steps"]) for e in w.all_of("step")]
             for w in cut.workers + alone[precision].workers]
    assert all(other == steps[0] for other in steps), "the stages scale alike"
