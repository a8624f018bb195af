"""Real daemons over the laboratory's networks, and that those networks are what they say."""
import itertools
import json
import os
import subprocess
import sys
import threading
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "integration"))

import network  # noqa: E402
from fixtures import assets, folder  # noqa: E402,F401
from laboratory import laboratory, unusable  # noqa: E402

pytestmark = pytest.mark.skipif(unusable() is not None and
                                os.environ.get("WEFT_NAMESPACES") != "required", reason=str(unusable()))

RECEIVE = """
import json, socket, sys, time
server = socket.create_server((sys.argv[1], 5000)); print("ready", flush=True)
peer, _ = server.accept()
peer.recv(1); peer.sendall(b"x")          # the round trip
started, got, first = 0.0, 0, 0
while True:
    block = peer.recv(1 << 20)
    if not block: break
    got += len(block)
    if not started and got > int(sys.argv[2]): started, first = time.monotonic(), got
print(json.dumps([got, (got - first) / (time.monotonic() - started)]))
"""
SEND = """
import json, socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
start = time.monotonic(); peer.sendall(b"x"); peer.recv(1)
print(json.dumps(time.monotonic() - start))
peer.sendall(bytes(int(sys.argv[2])))
"""


def measure(where, source, target, size):
    """Round trip in seconds and bytes a second of a TCP connection, its first third left out."""
    def start(name, script, *argv):
        return subprocess.Popen(["ip", "netns", "exec", where[name][0], sys.executable, "-c", script, *argv],
                                text=True, stdout=subprocess.PIPE)

    with start(target, RECEIVE, where[target][1], str(size // 3)) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        with start(source, SEND, where[target][1], str(size)) as sender:
            trip = json.loads(sender.communicate(timeout=120)[0])
        got, rate = json.loads(receiver.communicate(timeout=120)[0])
        assert got == size
        return trip, rate


def test_a_pair_has_its_rate_and_delay_in_each_direction():
    net = network.Network({"a": {}, "b": {}}, {("a", "b"): {"mbit_s": 40, "delay_ms": 30},
                                               ("b", "a"): {"mbit_s": 8, "delay_ms": 10}})
    with net.up() as where:
        for source, target, mbit_s, size in (("a", "b", 40, 12 << 20), ("b", "a", 8, 3 << 20)):
            trip, rate = measure(where, source, target, size)
            assert 0.040 <= trip < 0.075
            assert 0.6 < rate * 8e-6 / mbit_s / network.PAYLOAD < 1.03, (source, rate)


def test_an_access_line_has_its_rate_up_and_down():
    net = network.Network({"dsl": {"up_mbit_s": 8, "down_mbit_s": 50},
                           "cable": {"up_mbit_s": 20, "down_mbit_s": 200}, "fast": {}}, {})
    with net.up() as where:
        for source, target, mbit_s in (("dsl", "fast", 8), ("fast", "dsl", 50), ("cable", "fast", 20),
                                       ("fast", "cable", 200), ("dsl", "cable", 8), ("cable", "dsl", 20)):
            _, rate = measure(where, source, target, int(mbit_s * 1e6 / 8 * 1.5))
            assert 0.85 < rate * 8e-6 / mbit_s / network.PAYLOAD < 1.02, (source, target, rate * 8e-6)


def test_all_flows_of_an_end_share_its_access_line():
    net = network.Network({"home": {"up_mbit_s": 10, "down_mbit_s": 30}, "x": {}, "y": {}},
                          network.full(["home", "x", "y"], {"mbit_s": 100, "delay_ms": 5}))
    with net.up() as where:
        for pairs, mbit_s, size in (([("home", "x"), ("home", "y")], 10, 3 << 20),
                                    ([("x", "home")], 30, 8 << 20)):
            rates = []
            threads = [threading.Thread(target=lambda pair=pair: rates.append(measure(where, *pair, size)[1]))
                       for pair in pairs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            # Flows that end at different times measure more than their share at the end.
            assert 0.6 < sum(rates) * 8e-6 / mbit_s / network.PAYLOAD < 1.25, rates


def measure_while_changing(where, size, rates_mbit_s, every_s):
    """Bytes a second of a flow from home to x while its access line changes; how often it did."""
    rates = []
    flow = threading.Thread(target=lambda: rates.append(measure(where, "home", "x", size)[1]))
    flow.start()
    changes = 0
    for mbit_s in itertools.cycle(rates_mbit_s):
        flow.join(every_s)
        if not flow.is_alive():
            break
        network.Network.set_uplink(where["home"], mbit_s)
        changes += 1
    assert rates and changes >= 4, (rates, changes)
    return rates[0]


def test_an_access_line_that_changes_while_it_is_full_goes_on():
    net = network.Network({"home": {"up_mbit_s": 48}, "x": {}}, {})
    with net.up() as where:
        rate = measure_while_changing(where, 24 << 20, (15, 48, 10, 30), 0.5)
        assert 0.7 * 10 < rate * 8e-6 < 48
        # The last one holds, and nothing slips through between two.
        network.Network.set_uplink(where["home"], 15)
        _, rate = measure(where, "home", "x", 3 << 20)
        assert 0.85 < rate * 8e-6 / 15 / network.PAYLOAD < 1.02, rate * 8e-6
        rate = measure_while_changing(where, 6 << 20, (15,), 0.1)
        assert rate * 8e-6 / 15 / network.PAYLOAD < 1.1, rate * 8e-6


def test_lost_packets_slow_a_flow_and_lose_nothing():
    net = network.Network({"a": {}, "b": {}}, network.full(["a", "b"], {"mbit_s": 50, "delay_ms": 5, "loss": 0.3}))
    with net.up() as where:
        _, rate = measure(where, "a", "b", 1 << 19)
        assert rate * 8e-6 < 35


def test_homes_train_to_the_bits_of_one_peer(folder):  # noqa: F811
    with laboratory(network.named("homes"), folder) as lab:
        lab.join("fibre", "cable", "cable2", "dsl")
        precision = 'precision = "fp64"'
        whole, _ = lab.train("whole", stages=1, steps=4, train=precision)
        for schedule in ("1f1b", "zb-h1"):
            job, seconds = lab.train(f"cut-{schedule}", stages=4, steps=4, schedule=schedule, train=precision)
            assert job["loss"] == whole["loss"]
            # A micro-batch crosses three cuts and comes back: at least one way there and back of them
            # a step. To first stages without weights nothing returns, so they run ahead.
            stages = lab.cluster.weft_json("job", "explain", f"cut-{schedule}")["plan"]["stages"]
            free = next(i for i, stage in enumerate(stages) if stage["parameter_bytes"] > 0)
            assert free <= 1 and min(seconds) > 2 * (3 - free) * 0.023
            lab.cluster.wait_idle(4)


def test_a_broker_that_knows_the_lines_keeps_sites_together(folder):  # noqa: F811
    with laboratory(network.two_sites(), folder, gflops=20) as lab:
        lab.join("a0", "b0", "a1", "b1")
        job, _ = lab.train("sites", stages=4, steps=3)
        names = {peer: name for name, peer in lab.cluster.peer_ids.items()}
        sites = [names[peer][0] for peer in job["peers"]]
        # The first and the last stage share the embedding: as a ring, with two ways between the sites.
        assert sum(site != sites[i - 1] for i, site in enumerate(sites)) == 2, sites
        # 15 ms between the sites for a stage of less than a millisecond: as many ahead as there are.
        assert "gap 2" in lab.cluster.weft("job", "explain", "sites").stdout


def regions():
    """As measured, or where the table is not there as they lie on the globe."""
    try:
        return network.aws_regions()
    except network.Missing as missing:
        print(f"regions by distance: {missing}")
        return network.regions_by_distance()


def scenario(name):
    return regions() if name == "aws" else network.named(name)


def test_one_lan_trains(folder):  # noqa: F811
    net = network.equal_links(4, 1000, 0.2)
    with laboratory(net, folder, gflops=20) as lab:
        lab.join(*net.ends)
        job, seconds = lab.train("lan", stages=len(net.ends), steps=4)
        assert job["loss"] < job["first_loss"]
        assert len(seconds) == 3


@pytest.mark.parametrize("name, one_way_s", [("nanogpt", 0.050), ("aws", 0.005)])
def test_more_stages_than_cores_wait_instead_of_computing(folder, name, one_way_s):  # noqa: F811
    net = scenario(name)
    stages = len(net.ends)
    with laboratory(net, folder, gflops=20) as lab:
        lab.join(*net.ends, waits=True)
        job, seconds = lab.train("waits", stages=stages, steps=3)
        # Nothing is computed, and nobody can take it for training.
        assert job["loss"] is None
        said = [line["stage"] for line in lab.cluster.weft_json("job", "logs", "waits")["lines"]
                if "nothing is computed" in line["text"]]
        assert set(said) == set(range(stages))
        # The messages are real: through all stages, and gradients back to those with weights.
        assert min(seconds) > (stages - 1) * one_way_s
        steps = lab.cluster.weft_json("job", "metrics", "waits")["steps"]
        # Bytes count in the step that is under way when they are written.
        edges = {edge for step in steps for edge in step["edges"]}
        cut = lab.cluster.weft_json("job", "explain", "waits")["plan"]
        assert len(edges) >= stages - 1, (edges, [(s["flops"], s["parameter_bytes"]) for s in cut["stages"]])
        assert all(sum(step["edges"].get(edge, 0) for step in steps) > 0 for edge in edges)


def test_a_network_that_names_nobody_is_refused():
    net = network.Network({"a": {}}, {("a", "nobody"): {"mbit_s": 1, "delay_ms": 1}})
    with pytest.raises(RuntimeError, match="did not start"):
        with net.up():
            pass
