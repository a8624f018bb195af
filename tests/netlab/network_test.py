"""The networks of the laboratory as data; nothing here needs root."""
import json
import os
import statistics
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "integration"))

import harness  # noqa: E402
import network  # noqa: E402


def test_networks_are_the_files_that_plans_read():
    homes = network.named("homes")
    with open(os.path.join(network.NETWORKS, "homes", "links.csv"), encoding="utf-8") as file:
        told = [row.split(",") for row in file.read().splitlines()[1:]]
    # What the files say comes out again: data; the lines carry headers beside it.
    again = [row.split(",") for row in homes.links_csv().splitlines()[1:]]
    assert [(a, b, float(ms), float(rate)) for a, b, ms, rate in again] == \
        [(a, b, float(ms), float(rate)) for a, b, ms, rate in told]
    assert [float(line.split()[-1]) for line in homes.peers_toml().splitlines() if "up_" in line] == [200, 20, 20, 8]
    assert homes.ends["dsl"]["up_mbit_s"] == pytest.approx(8 * 1514 / 1448)
    nanogpt = network.named("nanogpt")
    assert len(nanogpt.pairs) == 56 and all(way["delay_ms"] == 50 for way in nanogpt.pairs.values())


@pytest.fixture(name="folder")
def _folder(tmp_path):
    def write(links, peers='[[peer]]\nid = "a"\n[[peer]]\nid = "b"\nup_mbit_s = 5\n'):
        (tmp_path / "links.csv").write_text(links, encoding="utf-8")
        (tmp_path / "peers.toml").write_text(peers)
        return tmp_path
    return write


@pytest.mark.parametrize("links, rows", [
    ("# Mbit/s\n0, 1e1\n0.5,0\n", ["a,b,0.0,10.0", "b,a,0.0,0.5"]),
    ("\ufeff,10\n,0\n", ["a,b,0.0,10.0"]),
    ("region_a, region_b, delay_ms, bandwidth_gbps\na, b, 3, 0.5\n", ["a,b,3.0,500.0", "b,a,3.0,500.0"]),
    ("a,b,bandwidth_mbit_s\nb,a,7\n", ["b,a,0.0,7.0", "a,b,0.0,7.0"]),
    ("from,to,latency_ms,bandwidth_mbit_s\n # up\nb,a,2,1\n", ["b,a,2.0,1.0"])])
def test_links_are_read_in_every_form(folder, links, rows):
    assert network.read(folder(links)).links_csv().splitlines()[1:] == rows


def test_what_no_network_can_be_made_of_is_refused(folder):
    pairs = "from,to,latency_ms,bandwidth_mbit_s\na,b,1,1\n"
    for peers in ('[[peer]]\nid = "a"\nsite = "x"\n', '[[site]]\nname = "x"\n[[peer]]\nid = "a"\n'):
        with pytest.raises(ValueError, match="names sites"):
            network.read(folder(pairs, peers))
    with pytest.raises(ValueError, match="no matrix of 2 rows"):
        network.read(folder("0,1,2\n1,0,2\n1,2,0\n"))


def test_a_network_is_simulated_over_the_same_lines(tmp_path):
    net = network.named("homes")
    text = net.scenario_toml(dict.fromkeys(net.ends, 50), "x.toml", 3)
    job = text.index("[[job]]")
    (tmp_path / "links.csv").write_text(net.links_csv())
    (tmp_path / "s.toml").write_text(text[:job] + """[[job]]
steps = 3
batch = 4
stages = 4
[job.transformer]
layers = 4
width = 256
tokens = 64
heads = 4
vocabulary = 1000
""")
    run = subprocess.run([os.path.join(harness.BIN, "weft"), "simulate", str(tmp_path / "s.toml"), "-o", "json"],
                         capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert said["jobs"][0]["phase"] == "finished" and said["jobs"][0]["stages"] == 4
    # Three ways there and back between homes, of 23 ms each at least.
    assert said["jobs"][0]["step_s"] > 6 * 0.023
    assert said["notes"] == []


def test_regions_by_distance_are_those_of_the_table():
    by_distance = network.regions_by_distance()
    assert len(by_distance.pairs) == 90
    near, far = by_distance.pairs["London", "Ireland"], by_distance.pairs["London", "Sydney"]
    assert 2 < near["delay_ms"] < 10 and near["mbit_s"] == pytest.approx(1150 / network.PAYLOAD)
    assert 100 < far["delay_ms"] < 150 and 150 < far["mbit_s"] < 300
    try:
        table = network.aws_regions()
    except network.Missing as missing:
        pytest.skip(str(missing))
    assert set(table.ends) == set(by_distance.ends)
    # The table's delays are those of round trips.
    ratios = [2 * by_distance.pairs[pair]["delay_ms"] / way["delay_ms"] for pair, way in table.pairs.items()]
    assert 0.9 < statistics.median(ratios) < 1.1 and 0.4 < min(ratios) and max(ratios) < 1.5


def test_a_table_of_regions_that_is_not_there_is_named(tmp_path):
    with pytest.raises(network.Missing, match="none.csv.*WEFT_AWS_REGIONS"):
        network.aws_regions(str(tmp_path / "none.csv"))
