"""Real daemons measure the lines of the laboratory for the broker: what `weft link list` says is held against
what the network is made of.

Bounds: rates within 15 % of what headers leave of a line, latencies up to a quarter and two milliseconds too long,
also while others use this machine (ten processes that want its two cores: the gate then wakes that late). A line of
a gigabit is as fast as two cores, the gate and TLS carry it just then: there only a wide bound holds."""
import os
import subprocess
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "integration"))

import harness  # noqa: E402
import network  # noqa: E402
from fixtures import assets, folder  # noqa: E402,F401
from laboratory import laboratory, unusable  # noqa: E402

pytestmark = pytest.mark.skipif(unusable() is not None and
                                os.environ.get("WEFT_NAMESPACES") != "required", reason=str(unusable()))

# Of what TCP carries TLS takes a little of each record.
PAYLOAD = network.PAYLOAD * 0.998
RATE = 0.15
# From here on it is the machine that is measured.
FAST_MBIT_S, FAST = 500, (0.2, 1.35)
BLOB_PORT = 7007

# Asks the daemon at an address for a round trip and brings it a train, as a peer; prints both answers.
ASK = """
import http.client, ssl, sys
host, port, folder = sys.argv[1:]
tls = ssl.create_default_context(cafile=folder + "/ca.pem")
tls.check_hostname = False
tls.load_cert_chain(folder + "/peer.pem", folder + "/peer.key")
for method, path, body in (("GET", "/api/v1/probe", None), ("PUT", "/api/v1/probe/train", iter([b"x" * 1000] * 4))):
    peer = http.client.HTTPSConnection(host, int(port), context=tls, timeout=20)
    peer.request(method, path, body=body, encode_chunked=body is not None,
                 headers={"transfer-encoding": "chunked"} if body else {})
    print(peer.getresponse().status)
"""


def links_of(lab):
    names = {peer: name for name, peer in lab.cluster.peer_ids.items()}
    told = lab.cluster.weft_json("link", "list")["links"]
    return {(names[link["from"]], names[link["to"]]): link for link in told}


def measured(lab, pairs, timeout_s=150):
    """Waits until each of these directions was measured itself."""
    def all_there():
        told = links_of(lab)
        return told if all(told.get(pair, {}).get("measured") for pair in pairs) else None
    try:
        return harness.wait_for("measuring", all_there, timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; known: {links_of(lab)}") from error


def line_of(lab, name, key, timeout_s=150):
    """Waits until the broker knows that of a peer's line; Mbit/s."""
    def known():
        line = lab.cluster.weft_json("peer", "get", lab.cluster.peer_ids[name])["line"]
        return line and line[key]
    return harness.wait_for(f"{key} of {name}", known, timeout_s)


def truth(net, a, b):
    way = net.pairs[a, b]
    limits = (way.get("mbit_s"), net.ends[a].get("up_mbit_s"), net.ends[b].get("down_mbit_s"))
    return min(limit for limit in limits if limit), way["delay_ms"]


def holds(net, told):
    """Every direction of the network is told, and as it is."""
    wrong = []
    for a, b in net.pairs:
        link = told.get((a, b))
        if link is None:
            wrong.append(f"{a} to {b} is not told")
            continue
        mbit_s, delay_ms = truth(net, a, b)
        share = (link["bandwidth_mbit_s"] or 0) / (mbit_s * PAYLOAD)
        least, most = FAST if mbit_s >= FAST_MBIT_S else (1 - RATE, 1 + RATE)
        if not least <= share <= most:
            wrong.append(f"{a} to {b}: {link['bandwidth_mbit_s']} of {mbit_s} Mbit/s, {share:.2f} of what it carries")
        if not 0.98 * delay_ms <= link["latency_ms"] <= 1.25 * delay_ms + 2:
            wrong.append(f"{a} to {b}: {link['latency_ms']} for {delay_ms} ms")
    assert not wrong, "\n".join(wrong)


def test_a_local_network(tmp_path):
    net = network.equal_links(3, 1000, 0.2)
    with laboratory(net, str(tmp_path), known=False, probe=True) as lab:
        lab.join(*net.ends)
        told = measured(lab, net.pairs)
        holds(net, told)
        assert {link["path"] for link in told.values()} == {"lan"}


def test_homes_send_slower_than_they_receive_and_share_their_line(tmp_path):
    net = network.homes_and_hub()
    with laboratory(net, str(tmp_path), known=False, probe=True) as lab:
        lab.join(*net.ends)
        told = measured(lab, net.pairs)
        holds(net, told)
        assert {link["path"] for link in told.values()} == {"wan"}
        for home in ("home0", "home1"):
            assert line_of(lab, home, "shared_up_mbit_s") == pytest.approx(20 * PAYLOAD, rel=RATE)
        assert line_of(lab, "home0", "down_mbit_s") == pytest.approx(100 * PAYLOAD, rel=RATE)


def test_two_sites_share_the_line_between_them(tmp_path):
    net = network.joined_sites()
    with laboratory(net, str(tmp_path), known=False, probe=True) as lab:
        inside = [pair for pair in net.pairs if pair[0][0] == pair[1][0]]
        # Of a site that is known one peer is measured at a time. Before, two may be at once, and
        # what their line gives each counts until it is measured again.
        lab.join("a0", "a1")
        measured(lab, [("a0", "a1"), ("a1", "a0")])
        lab.join("b0", "b1")
        lab.cluster.wait_idle(len(net.ends))
        told = measured(lab, net.pairs)
        holds(net, told)
        assert all(told[pair]["path"] == ("lan" if pair in inside else "wan") for pair in net.pairs)
        for site in "ab":
            assert line_of(lab, f"{site}0", "shared_up_mbit_s") == pytest.approx(50 * PAYLOAD, rel=RATE)


def test_a_slow_line_far_away(tmp_path):
    net = network.equal_links(2, 8, 50)
    with laboratory(net, str(tmp_path), known=False, probe=True) as lab:
        lab.join(*net.ends)
        holds(net, measured(lab, net.pairs))


def bytes_of(lab, name):
    """Through its device, both ways, since it exists."""
    namespace, _, device = lab.where[name]
    files = [f"/sys/class/net/{device}/statistics/{way}_bytes" for way in ("rx", "tx")]
    said = subprocess.run(["ip", "netns", "exec", namespace, "cat", *files], capture_output=True, text=True, check=True)
    return [int(line) for line in said.stdout.split()]


def test_a_peer_that_works_is_left_alone(folder):  # noqa: F811
    mbit_s = 20
    names = ["worker", "near", "far"]
    net = network.Network({name: {"up_mbit_s": mbit_s, "down_mbit_s": mbit_s} for name in names},
                          network.full(names, {"mbit_s": 1000, "delay_ms": 5}))
    with laboratory(net, folder, known=False, probe=True) as lab:
        lab.cluster.start_peer("worker", prefix=lab.prefix("worker"), host=lab.address("worker"),
                               flags=("--blob-port", str(BLOB_PORT)))
        lab.cluster.wait_idle(1)
        # Steps of some length: what the broker is told of each counts, too.
        lab.submit("work", stages=1, steps=100000, batch=128)
        lab.cluster.wait_step("work", 2)
        before, start = bytes_of(lab, "worker"), time.monotonic()
        lab.join("near", "far")
        told = measured(lab, [("near", "far"), ("far", "near")])
        assert not any("worker" in pair and link["measured"] for pair, link in told.items())
        took, after = time.monotonic() - start, bytes_of(lab, "worker")
        for was, now in zip(before, after):
            assert now - was <= 0.01 * mbit_s * 1e6 / 8 * took, (now - was, took)
        # Who asks all the same hears that it works, before and after sending anything.
        said = subprocess.run([*lab.prefix("near"), sys.executable, "-c", ASK, lab.address("worker"),
                               str(BLOB_PORT), os.path.join(str(folder), "near")],
                              capture_output=True, text=True, timeout=60, check=False)
        assert said.stdout.split() == ["503", "503"], said
        assert lab.cluster.job("work")["state"] == "running"
        lab.cluster.weft("job", "cancel", "work")
        holds(net, measured(lab, net.pairs))
