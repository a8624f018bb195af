"""A message over a long way takes the way's own time: the congestion control has been shown what it carries. Real
daemons over a network of the laboratory; computing is waiting."""
import os
import re
import statistics
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "integration"))

import harness  # noqa: E402
import network  # noqa: E402
from laboratory import laboratory, unusable  # noqa: E402

pytestmark = pytest.mark.skipif(unusable() is not None and
                                os.environ.get("WEFT_NAMESPACES") != "required", reason=str(unusable()))

with open("/proc/sys/net/ipv4/tcp_allowed_congestion_control", encoding="utf-8") as _file:
    CONTROLS = _file.read().split()  # that a namespace may have
MBIT_S, BATCH, SEQUENCE, WIDTH = 400, 4, 128, 256


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory):
    """A micro-batch is a message of half a MiB."""
    folder = str(tmp_path_factory.mktemp("far"))
    harness.python("examples/export_gpt.py", "--out", os.path.join(folder, "gpt.pt2"), "--layers", "2", "--width", str(WIDTH),
                   "--heads", "4", "--sequence", str(SEQUENCE), "--batch", str(BATCH))
    harness.tiny_tokens(folder, 200000)
    return folder


def padding(lab, job):
    """Megabytes of it, by stage."""
    lines = lab.cluster.weft_json("job", "logs", job)["lines"]
    found = ((line["stage"], re.search(r"([\d.]+) MB of padding showed a way", line["text"])) for line in lines)
    return {stage: float(match.group(1)) for stage, match in found if match}


# Only one message is on its way at a time, a sixteenth of what the way carries in a round trip.
def step_of_one_micro_batch(folder, delay_ms, control):
    net, job = network.equal_links(2, MBIT_S, delay_ms), f"far-{control}-{delay_ms:g}".replace(".", "-")
    # Slow peers, so that the model is cut in its middle rather than where nothing comes back.
    with laboratory(net, folder, known="peers", gflops=1, congestion=control) as lab:
        lab.join(*net.ends, waits=True)
        _, seconds = lab.train(job, stages=2, steps=8, batch=BATCH)
        waited = sum(times["forward"] + times["backward"] for times in lab.waited(job, 2))
        return statistics.median(seconds[2:]) - waited, padding(lab, job)


@pytest.mark.parametrize("control", CONTROLS)
def test_a_message_over_a_long_way_takes_the_ways_own_time(model, control):
    delay_s = 0.08
    beyond, padded = step_of_one_micro_batch(model, 1e3 * delay_s, control)
    transfer_s = BATCH * SEQUENCE * WIDTH * 4 * 8 / (MBIT_S * 1e6 * network.PAYLOAD)
    own_s = 2 * (delay_s + transfer_s)
    assert set(padded) == {0, 1}, "both directions of the way carry large messages"
    assert max(padded.values()) < 64
    # bbr that was not shown the way takes 0.08 s longer.
    assert own_s - 0.01 < beyond < own_s + 0.07, (beyond, own_s)


def test_a_short_way_is_not_filled(model):
    _, padded = step_of_one_micro_batch(model, 0.2, CONTROLS[0])
    assert padded == {}
