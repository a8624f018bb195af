"""Real, jailed weft-worker processes on cards: two that share one, and one each on two.

What they compute is what one worker on one card computes: 1e-9 relative in float64 (cuBLAS may
choose other kernels for other calls), 2e-3 with fp16.
WEFT_TEST_CARDS names devices instead of the cards torch sees: cpu,cpu runs the tests without any.
"""
import os
import pathlib
import statistics
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


def busy_seconds(steps):
    """The median of the second half's compute; no step computes longer than it and its neighbour took."""
    told = [(e["compute_s"], e["seconds"]) for e in steps]
    half = len(told) // 2
    for at in range(half, len(told)):
        assert 0 <= told[at][0] < 1.1 * (told[at - 1][1] + told[at][1]), (at, told)
    computed, took = sum(c for c, _ in told[half:]), sum(s for _, s in told[half - 1:])
    assert computed < 1.1 * took, (computed, took, told)
    return statistics.median(compute for compute, _ in told[half:])


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
    # What a card was busy for is told up to a step late, and less than the steps took. Beside each other
    # the stages do what one worker does alone; two processes take turns on a card.
    busy = [busy_seconds(w.all_of("step")) for w in cut.workers]
    busy_alone = busy_seconds(alone[precision].workers[0].all_of("step"))
    print(f"busy a step: {busy}, alone {busy_alone}")
    assert 0.25 * busy_alone < sum(busy) < 4 * len(busy) * busy_alone
    steps = [[(e["loss_scale"], e["skipped_steps"]) for e in w.all_of("step")]
             for w in cut.workers + alone[precision].workers]
    assert all(other == steps[0] for other in steps), "the stages scale alike"
