"""Peers that measure the ways between each other: `weft link list`, kept, planned with, never in a job's way."""
import pytest

import harness


@pytest.fixture
def probing(folder):
    with harness.Cluster(folder, probe=True) as running:
        yield running


def measured(cluster):
    return {(link["from"], link["to"]): link for link in cluster.weft_json("link", "list")["links"]
            if link["measured"]}


def test_idle_peers_measure_their_links(probing):
    cluster = probing
    cluster.start_peers(3)
    links = harness.wait_for("six measured directions",
                             lambda: (found := measured(cluster)) and len(found) == 6 and found, 60)
    ids = set(cluster.peer_ids.values())
    assert {end for way in links for end in way} == ids
    for link in links.values():
        assert link["path"] == "same-host"
        assert 0 < link["latency_ms"] < 50 and link["bandwidth_mbit_s"] > 50
    one = sorted(ids)[0]
    line = cluster.weft_json("peer", "get", one)["line"]
    assert sorted(line["site"]) == sorted(ids - {one})  # one address, one site
    table = cluster.weft("link", "list").stdout
    assert "MBIT/S" in table and table.count("measured") == 6
    # A job gets peers and finishes, whatever is measured beside it; its plan knows the links.
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, "gpt", stages=2, steps=4))
    cluster.wait_job("gpt", ["finished"])
    assert "no link was measured" not in cluster.weft_json("job", "explain", "gpt")["reason"]
    # Kept over a restart of the broker.
    before = {way: link["time_ms"] for way, link in measured(cluster).items()}
    cluster.kill("broker")
    cluster.restart_broker()
    after = {way: link["time_ms"] for way, link in measured(cluster).items()}
    assert set(after) == set(before)
    assert all(after[way] >= before[way] for way in before)


def test_a_job_waits_for_the_first_measurement_and_not_for_long(probing):
    cluster = probing
    cluster.weft("job", "submit", harness.gpt_job(cluster.folder, "gpt", stages=2, steps=2))
    cluster.start_peers(2)
    cluster.wait_job("gpt", ["finished"])
    assert cluster.job("gpt")["state"] == "finished"
