"""The messages of a running job say what the lines of its plan carry: of ways that nobody probed, of ways whose
probe said too little, and of lines that become worse under it. Real daemons over a network of the laboratory; nobody
is asked to measure anything."""
import json
import os
import sqlite3
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "integration"))

import harness  # noqa: E402
import network  # noqa: E402
from laboratory import laboratory, unusable  # noqa: E402

pytestmark = pytest.mark.skipif(unusable() is not None and
                                os.environ.get("WEFT_NAMESPACES") != "required", reason=str(unusable()))

MBIT_S, DELAY_MS = 50, 15
# Of what TCP carries frames and TLS take a little: rates of work count it.
RATE = pytest.approx(MBIT_S * network.PAYLOAD, rel=0.15)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model whose micro-batch is a message of one MiB."""
    folder = str(tmp_path_factory.mktemp("wide"))
    harness.python("examples/export_gpt.py", "--out", os.path.join(folder, "gpt.pt2"), "--layers", "2", "--width", "256",
                   "--heads", "4", "--sequence", "128", "--batch", "8")
    harness.tiny_tokens(folder, 200000)
    return folder


def work(lab, name):
    """Two stages with a message of 0.2 s after the other both ways, until two reports at least told of them."""
    lab.train(name, stages=2, steps=8, batch=32)
    lab.cluster.wait_idle(2)


def ways(lab):
    names = {peer: name for name, peer in lab.cluster.peer_ids.items()}
    told = lab.cluster.weft_json("link", "list")["links"]
    return {(names[link["from"]], names[link["to"]]): link for link in told}


def spoil(state, ids, mbit_s):
    """As if a probe had found that rate while others used the line."""
    now = int(1000 * time.time()) - 1000
    record = {"trips": [[now, 0.08]], "samples": [[now, 1e6, 8 / mbit_s]], "probed_ms": now, "carried": [0, 0.0]}
    with sqlite3.connect(os.path.join(state, "broker.db")) as store:
        store.execute("DELETE FROM links")
        for a in ids:
            for b in ids:
                if a != b:
                    store.execute("INSERT INTO links VALUES(?,?,?,?)", (a, b, now, json.dumps(record)))
    store.close()


def test_work_tells_what_a_line_carries(wide):
    net = network.equal_links(2, MBIT_S, DELAY_MS)
    # Slow peers, so that the model is cut in its middle, whatever the line is taken for.
    with laboratory(net, wide, known="peers", gflops=5) as lab:
        lab.join(*net.ends, waits=True)
        assert ways(lab) == {}
        work(lab, "first")
        told = ways(lab)
        assert set(told) == set(net.pairs)
        for link in told.values():
            assert link["measured"] and link["known_by"] == "work" and link["path"] == "wan"
            assert link["bandwidth_mbit_s"] == RATE, told
            assert DELAY_MS <= link["latency_ms"] <= 1.25 * DELAY_MS + 2, told
        assert lab.cluster.weft("link", "list").stdout.count("by work") == 2

        # Kept over a restart; then as if probes had said too little, and too long a round trip.
        lab.cluster.kill("broker")
        lab.cluster.restart_broker()
        assert ways(lab) == told
        lab.cluster.kill("broker")
        spoil(os.path.join(wide, "broker"), lab.cluster.peer_ids.values(), mbit_s=16)
        lab.cluster.restart_broker()
        lab.cluster.wait_idle(2)
        for link in ways(lab).values():
            assert link["known_by"] == "probe"
            assert link["bandwidth_mbit_s"] == pytest.approx(16) and link["latency_ms"] == pytest.approx(40)
        work(lab, "second")
        for link in ways(lab).values():
            assert link["known_by"] == "work" and link["bandwidth_mbit_s"] == RATE, ways(lab)
            assert DELAY_MS <= link["latency_ms"] <= 1.25 * DELAY_MS + 2
        # The next plan counts it.
        work(lab, "third")
        third = lab.cluster.weft_json("job", "explain", "third")["plan"]["step_s"]
        second = lab.cluster.weft_json("job", "explain", "second")["plan"]["step_s"]
        assert third < 0.95 * second, (second, third)


def rate_of(lab, way, about, timeout_s):
    """Waits until the broker takes this way for about that fast; its Mbit/s."""
    def told():
        link = ways(lab).get(way, {})
        return link.get("bandwidth_mbit_s") if link.get("bandwidth_mbit_s") == about else None
    return harness.wait_for(f"{about} for {way}, not {ways(lab)}", told, timeout_s, every_s=2)


def test_work_tells_that_a_line_became_worse_and_better_again(wide):
    net = network.equal_links(2, 200, DELAY_MS)
    net.ends["p0"]["up_mbit_s"] = MBIT_S
    with laboratory(net, wide, known="peers", gflops=5) as lab:
        lab.join(*net.ends, waits=True)
        lab.submit("long", stages=2, steps=1000000, batch=32, train="eval_batches = 1",
                   pipeline='replan = "never"')
        lab.cluster.wait_step("long", 4)
        (way,) = [way for way in net.pairs if way[0] == "p0"]
        rate_of(lab, way, RATE, 60)
        worse = 0.3 * MBIT_S
        network.Network.set_uplink(lab.where["p0"], worse)
        start = time.monotonic()
        # What the run before knows counts for a minute, then two of shortfall.
        rate_of(lab, way, pytest.approx(worse * network.PAYLOAD, rel=0.2), 300)
        assert time.monotonic() - start > 100, "a line that others share for a moment has not become worse"
        assert lab.cluster.job("long")["state"] == "running"
        network.Network.set_uplink(lab.where["p0"], MBIT_S)
        rate_of(lab, way, RATE, 60)
        lab.cluster.weft("job", "cancel", "long")
