"""`weft plan`: no broker needed; the plan it prints can be judged again; what is missing is named."""
import json
import os
import subprocess
from xml.etree import ElementTree

import pytest

import harness

PEERS = """
[[peer]]
id = "a1"
gflops = 200
memory_gib = 4
site = "a"
[[peer]]
id = "a2"
gflops = 100
memory_gib = 4
site = "a"
[[peer]]
id = "b1"
gflops = 400
memory_gib = 4
site = "b"
[[site]]
name = "a"
bandwidth_mbit_s = 10000
latency_ms = 0.05
"""
LINKS = "region_a,region_b,delay_ms,bandwidth_gbps\na,b,15,0.02\n"


@pytest.fixture
def plan(folder, tmp_path):
    job = harness.gpt_job(folder, stages='"auto"', batch=32)
    (tmp_path / "peers.toml").write_text(PEERS)
    (tmp_path / "links.csv").write_text(LINKS)
    weft = os.path.join(harness.BIN, "weft")

    def run(*words, code=0):
        env = dict(os.environ, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / "config"))
        done = subprocess.run([weft, "plan", str(job), *words], capture_output=True, text=True, cwd=tmp_path,
                              env=env, check=False, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr
    return run


def test_plans_without_a_broker_and_judges_the_same(plan, tmp_path):
    text = plan("--peers", "peers.toml", "--links", "links.csv", "--svg", "plan.svg")
    assert "bottleneck" in text and "a step predicted" in text and "best single peer" in text
    assert ElementTree.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")
    made = plan("--peers", "peers.toml", "--links", "links.csv", "-o", "json")
    (tmp_path / "plan.json").write_text(made)
    made = json.loads(made)
    nodes = [node for stage in made["stages"] for node in stage["nodes"]]
    assert len(nodes) == len(set(nodes)) > 50
    for other in made["alternatives"]:
        assert made["pace_s"] <= other["pace_s"] * (1 + 1e-9)
        assert other["pace_s"] >= other["step_s"] > 0
    used = {stage["peer"] for stage in made["stages"]}
    assert used | {left["peer"] for left in made["left_out"]} == {"a1", "a2", "b1"}
    judged = json.loads(plan("--peers", "peers.toml", "--links", "links.csv", "--evaluate", "plan.json", "-o",
                             "json"))
    assert judged["step_s"] == pytest.approx(made["step_s"])
    assert judged["stages"] == made["stages"]


def test_asked_stages_and_precision_count(plan):
    words = ["--peers", "peers.toml", "--links", "links.csv", "-o", "json", "--set", "pipeline.stages=3"]
    single = json.loads(plan(*words))
    half = json.loads(plan(*words, "--set", "train.precision=bf16"))
    assert len(single["stages"]) == len(half["stages"]) == 3
    assert len({stage["peer"] for stage in single["stages"]}) == 3
    assert single["plan"]["schedule"] == "1f1b", "as the job file says"
    assert all(way["bytes"] > 0 for way in half["ways"])


def test_only_hidden_states_cross(plan, tmp_path):
    # Of 2 x 32 tokens and a width of 32, some of it wider inside of a layer; no masks and no ids of
    # positions, which no gradient would come back for.
    hidden = 2 * 32 * 32 * 4
    (tmp_path / "equal.toml").write_text("".join(
        f'[[peer]]\nid = "p{i}"\ngflops = 1\nsite = "a"\n' for i in range(3)))
    for stages in (2, 3):
        made = json.loads(plan("--peers", "equal.toml", "-o", "json", "--set", f"pipeline.stages={stages}"))
        ways = {(way["from"], way["to"]): way["bytes"] for way in made["ways"]}
        assert ways.keys() == {(a, b) for a in range(stages) for b in range(stages) if abs(a - b) == 1}
        for (a, b), size in ways.items():
            assert size == ways[b, a] and size % hidden == 0


def test_an_assumed_codec_is_planned_with_and_told(plan, tmp_path):
    (tmp_path / "far.csv").write_text("region_a,region_b,delay_ms,bandwidth_gbps\n"
                                      "a1,a2,1,0.02\na1,b1,1,0.02\na2,b1,1,0.02\n")
    words = ["--peers", "peers.toml", "--links", "far.csv", "--set", "pipeline.stages=3"]
    (tmp_path / "codec.toml").write_text('policy = "assumed"\nratio = 0.1\ngbyte_s = 2\nbelow_mbit_s = 100\n')
    text = plan(*words, "--compression", "codec.toml", "--svg", "plan.svg")
    assert "compression is assumed, not measured: 0.1 of the bytes, 2 GB/s at either end" in text
    assert "ENCODE" in text and "assumed" in text and "instead of" in (tmp_path / "plan.svg").read_text()
    assert "ENCODE" not in plan(*words)
    made = json.loads(plan(*words, "--compression", "codec.toml", "-o", "json"))
    ways = [way for way in made["ways"] if way["codecs"]]
    assert ways, "two of the three stages make tensors of floats"
    for way in ways:
        assert way["codecs"] == ["assumed"] and way["encode_s"] == pytest.approx(way["bytes"] / 2e9)
        assert way["wire_bytes"] == pytest.approx(0.1 * way["bytes"])
    plain = json.loads(plan(*words, "-o", "json"))
    assert made["step_s"] < 0.9 * plain["step_s"] and plain["compression"] == "none"
    (tmp_path / "codec.toml").write_text('policy = "top-k"\n')
    error = plan(*words, "--compression", "codec.toml", code=1)
    assert 'codec.toml: there is no policy "top-k"' in error and "none (everything is sent as it is)" in error


def test_links_alone_name_the_peers(plan):
    report = json.loads(plan("--links", "links.csv", "-o", "json"))
    assert {"a", "b"} == {stage["peer"] for stage in report["stages"]} | {
        left["peer"] for left in report["left_out"]}
    assert not report["timed"] and any("no peer's speed is known" in note for note in report["notes"])


def test_what_is_wrong_is_named(plan, tmp_path):
    assert "--peers peers.toml" in plan(code=1)  # no login
    (tmp_path / "bad.csv").write_text("0,-1,2\n1,0,1\n1,1,0\n")
    assert 'bad.csv, line 1: column 2 is "-1"' in plan("--peers", "peers.toml", "--links", "bad.csv", code=1)
    small = PEERS.replace("memory_gib = 4", "memory_gib = 0.0001")
    (tmp_path / "small.toml").write_text(small)
    assert "too little memory" in plan("--peers", "small.toml", code=1)
    assert "more stages than nodes" in plan("--peers", "peers.toml", "--set", "pipeline.stages=1000", code=1)
