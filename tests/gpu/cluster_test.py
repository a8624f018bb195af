"""A broker and daemons on cards: what they measure of them, what is planned with that, and what it takes.

WEFT_TEST_CARDS=cpu,cpu runs what needs no card.
"""
import os
import pathlib
import statistics
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

import harness  # noqa: E402
from cards_test import CARDS  # noqa: E402

ON_CARD = bool(CARDS) and CARDS[0] != "cpu"
needs_card = pytest.mark.skipif(not ON_CARD, reason="torch sees no card: scripts/gpu_check.sh runs this")
PROGRAMS = [os.path.join(harness.BIN, name) for name in ("weft", "weftd", "weft-broker")]
pytestmark = [
    pytest.mark.skipif(not all(map(os.path.exists, PROGRAMS)),
                       reason=f"weft, weftd and weft-broker are not in {harness.BIN}"),
    pytest.mark.skipif(not CARDS, reason="torch sees no card: scripts/gpu_check.sh runs these"),
]
GPT = ["--layers", "8", "--width", "512", "--heads", "8", "--sequence", "256", "--batch", "4"]
MICRO_BATCHES = 8
GIB = 2**30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two daemons that have measured themselves, on one card or one each."""
    folder = tmp_path_factory.mktemp("cluster")
    harness.python("examples/export_gpt.py", "--out", str(folder / "gpt.pt2"), *(GPT if ON_CARD else harness.TINY_GPT))
    harness.tiny_tokens(folder, 100000)
    with harness.Cluster(folder, measure=True, probe=True) as running:
        running.start_peer("first", device=CARDS[0])
        running.start_peer("second", device=CARDS[-1])  # measures at the same time, where they share a card too
        running.wait_idle(2)
        for name in ("first", "second"):
            measured(running, name)
        harness.wait_for("both ways between the two", lambda: sum(
            link["measured"] for link in running.weft_json("link", "list")["links"]) == 2, 120, 1)
        yield running


def facts_of(cluster, name):
    return cluster.weft_json("peer", "get", cluster.peer_ids[name])


def measured(cluster, name):
    harness.wait_for(f"a profile of {name}", lambda: facts_of(cluster, name)["profile"], 240, 1)


@needs_card
def test_daemons_tell_their_card(cluster):
    import torch

    for name, device in (("first", CARDS[0]), ("second", CARDS[-1])):
        facts = facts_of(cluster, name)
        free, total = torch.cuda.mem_get_info(torch.device(device))
        assert facts["device"] == device
        assert facts["device_name"] == torch.cuda.get_device_name(device)
        assert facts["memory_bytes"] == pytest.approx(total, rel=0.03)
        assert 0 < facts["free_memory_bytes"] <= facts["memory_bytes"]
        assert facts["free_memory_bytes"] == pytest.approx(free, abs=4 * GIB)
        assert facts["profile"]["device"] == device
        for precision in ("fp32", "bf16"):
            # What waited for its turn on a card that both measured takes time by the FLOP all the same.
            for product in ("matrix", "convolution", "attention"):
                for way in ("forward", "backward"):
                    assert (facts["profile"][precision][product][way]["gflops"] or 0) > 100, facts["profile"]
            assert facts["profile"][precision]["matrix"]["forward"]["gflops"] > 1000, facts["profile"]


def train(cluster, name, steps):
    cluster.weft("job", "submit", harness.gpt_job(
        cluster.folder, name, stages=2, steps=steps, batch=MICRO_BATCHES * (4 if ON_CARD else 2)))
    cluster.wait_job(name, {"finished"}, timeout_s=300, every_s=1)
    rows = cluster.weft_json("job", "metrics", name)["steps"]
    cluster.wait_idle(2)
    return cluster.weft_json("job", "explain", name)["plan"], rows


def test_plans_what_the_cards_then_take(cluster):
    plan, rows = train(cluster, "learn", 40)
    first = statistics.median(row["seconds"] for row in rows[20:])
    print(f"{CARDS}: first job: planned {1e3 * plan['step_s']:.1f} ms a step, took {1e3 * first:.1f}")
    assert rows[-1]["loss"] < rows[0]["loss"]
    plan, rows = train(cluster, "again", 40)
    again = statistics.median(row["seconds"] for row in rows[20:])
    factors = [facts_of(cluster, name)["correction"]["factor"] for name in ("first", "second")]
    print(f"{CARDS}: second job: planned {1e3 * plan['step_s']:.1f} ms a step, took {1e3 * again:.1f}; profiles corrected "
          f"by {factors}; busy {[stage['busy'] for stage in rows[-1]['stages']]}")
    assert 0.5 < plan["step_s"] / again < 2


@pytest.fixture(name="jobs", scope="module")
def _jobs(cluster):
    """Writes jobs of two stages over models whose weights and activations leave what a library takes far behind."""
    folder = cluster.folder

    def gpt(name, pipeline, dropout="0", **options):
        path = os.path.join(folder, f"gpt-{dropout}.pt2")
        if not os.path.exists(path):
            harness.python("examples/export_gpt.py", "--out", path, "--layers", "12", "--width", "768", "--heads", "12",
                           "--sequence", "512", "--batch", "4", "--dropout", dropout)
        return harness.gpt_job(folder, name, model=path, stages=2, steps=4, batch=MICRO_BATCHES * 4, pipeline=pipeline,
                               **options)

    def resnet(name, pipeline, schedule, train):
        import numpy

        harness.python("examples/export_resnet.py", "--out", os.path.join(folder, "resnet.pt2"), "--batch", "512")
        numpy.save(os.path.join(folder, "images.npy"), numpy.zeros((8192, 28, 28), "uint8"))
        numpy.save(os.path.join(folder, "labels.npy"), numpy.zeros(8192, "int64"))
        path = os.path.join(folder, f"{name}.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"""name = "{name}"
model = "resnet.pt2"
loss = "graph"
[data.arrays]
images = {{ train = "images.npy", eval = "images.npy" }}
labels = {{ train = "labels.npy", eval = "labels.npy" }}
[data.bind]
images = {{ column = "images", scale = 0.0039 }}
labels = {{ column = "labels" }}
[train]
steps = 4
batch = {MICRO_BATCHES * 512}
optimizer = "sgd"
lr = 0.01
{train}
[pipeline]
stages = 2
schedule = "{schedule}"
{pipeline}
""")
        return path
    return {"gpt": gpt, "dropout": lambda *args, **options: gpt(*args, dropout="0.1", **options), "resnet": resnet}


# What a plan says must hold what a stage takes, without the share of a card that plans leave alone: that is for the
# context, and for what other models need.
@needs_card
@pytest.mark.parametrize("model, schedule, precision, recompute", [
    ("gpt", "gpipe", "fp32", "never"), ("gpt", "1f1b", "fp32", "never"), ("gpt", "zb-h1", "fp32", "never"),
    ("gpt", "1f1b", "bf16", "never"), ("gpt", "1f1b", "fp32", "always"), ("gpt", "zb-h1", "bf16", "always"),
    ("dropout", "1f1b", "bf16", "never"), ("resnet", "1f1b", "fp32", "never"), ("resnet", "zb-h1", "bf16", "never")])
def test_stages_fit_where_they_are_planned(cluster, jobs, model, schedule, precision, recompute):
    name = f"memory-{model}-{schedule}-{precision}-{recompute}"
    cluster.weft("job", "submit", jobs[model](name, f'recompute = "{recompute}"', schedule=schedule,
                                              train=f'precision = "{precision}"'))
    cluster.wait_job(name, {"finished"}, timeout_s=300, every_s=1)
    rows = cluster.weft_json("job", "metrics", name)["steps"]
    cluster.wait_idle(2)
    stages = cluster.weft_json("job", "explain", name)["plan"]["stages"]
    for index, stage in enumerate(stages):
        peak = max(row["stages"][index]["peak_memory_bytes"] for row in rows)
        print(f"{name}, stage {index}: planned {stage['memory_bytes'] / GIB:.3f} GiB, reserved at most {peak / GIB:.3f}, "
              f"{peak / stage['memory_bytes']:.3f}")
        assert 0.4 * stage["memory_bytes"] < peak < stage["memory_bytes"]


@needs_card
def test_what_others_take_of_a_card_is_not_planned_with(cluster):
    before = facts_of(cluster, "first")["free_memory_bytes"]
    with subprocess.Popen([sys.executable, "-c", f"""
import sys, torch
held = torch.empty(20 * 2**30, dtype=torch.uint8, device="{CARDS[0]}")
print("held", flush=True)
sys.stdin.read()
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        harness.wait_for("less free memory",
                         lambda: facts_of(cluster, "first")["free_memory_bytes"] < before - 15 * GIB, 150, 1)
        other.stdin.close()
