"""Idle peers beside a working one are measured over the line that its messages take, and leave it to them: bytes of
real daemons over a shared line of the laboratory."""
import os
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "integration"))

import harness  # noqa: E402
import network  # noqa: E402
from beside_work import BesideWork  # noqa: E402
from fixtures import assets, folder  # noqa: E402,F401
from laboratory import laboratory, unusable  # noqa: E402

pytestmark = pytest.mark.skipif(unusable() is not None and
                                os.environ.get("WEFT_NAMESPACES") != "required", reason=str(unusable()))

MBIT_S = 50
SHARE = 0.01  # busy_share of broker/links/link_types.h
LONGEST_S = 0.5  # busy_max_ms, of the trains of one probe
CONTROL_BYTES_S = 2000  # what a daemon and its broker say


def test_probes_leave_a_shared_line_to_the_work_on_it(folder):  # noqa: F811
    net = network.joined_sites(2, mbit_s=MBIT_S)
    workers, idle = {"a0": "a0", "b0": "b0"}, {"a1": "a1", "b1": "b1"}
    with laboratory(net, folder, known=False, probe=True) as lab:
        beside = BesideWork(net, lab, workers, idle)
        lab.submit("work", stages=2, steps=1000000, pipeline='replan = "never"')
        lab.cluster.wait_step("work", 2)
        before, asked = beside.bytes_of("a1"), beside.probes().get("measured", 0)
        start = time.monotonic()
        beside.wake()
        ends = []
        for count in (1, 2):
            harness.wait_for(f"probe {count}", lambda: beside.probes().get("measured", 0) >= asked + count, 180)
            ends.append(time.monotonic())
        took, after = ends[1] - start, beside.bytes_of("a1")
        assert lab.cluster.job("work")["state"] == "running"
        # The first took a tenth of a second at least, and the line then rests as long as the share asks.
        assert ends[1] - ends[0] > 0.1 / SHARE * 0.9, ends
        bytes_s = MBIT_S * 1e6 / 8
        # The last probe's rest is still to come.
        most = bytes_s * (SHARE * took + LONGEST_S) + CONTROL_BYTES_S * took
        probed = [now - was for was, now in zip(before, after)]
        assert all(count <= most for count in probed), (probed, most, took)
        assert sum(probed) > 200_000, (probed, "trains went over the line")
        assert sum(probed) <= 2 * bytes_s * LONGEST_S + 2 * CONTROL_BYTES_S * took, probed
