"""`weft simulate`: scenarios as a user writes them, over the real program."""
import json
import os
import pathlib
import re
import subprocess

import harness

EXAMPLES = os.path.join(harness.ROOT, "examples", "simulate")


def simulate(*arguments, check=True):
    run = subprocess.run([os.path.join(harness.BIN, "weft"), "simulate", *map(str, arguments)], capture_output=True, text=True,
                         timeout=120, check=False)
    if check:
        assert run.returncode == 0, run.stderr
    return run


def small(tmp_path, edit=lambda text: text):
    """The example of ten thousand peers with few steps and jobs."""
    with open(os.path.join(EXAMPLES, "ten_thousand.toml"), encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"^steps = \d+", "steps = 3", text, flags=re.M)
    text = re.sub(r"^count = 99", "count = 4", text, flags=re.M)
    path = tmp_path / "scenario.toml"
    path.write_text(edit(text))
    return path


def test_the_examples_say_what_happened():
    text = simulate(os.path.join(EXAMPLES, "two_sites.toml")).stdout
    assert re.search(r"gpt\s+finished\s+6\s+300/300", text), text
    assert "8 peers" in text and "predicted" in text.lower()


def test_an_assumed_codec_spans_what_a_thin_line_keeps_apart(tmp_path):
    example = os.path.join(EXAMPLES, "thin_line.toml")
    text = simulate(example).stdout
    assert "compression is assumed, not measured: 0.05 of the bytes" in text
    compressed = json.loads(simulate(example, "-o", "json").stdout)
    plain = tmp_path / "plain.toml"
    plain.write_text(re.sub(r"\[compression\]\n(.+\n)+", '[compression]\npolicy = "none"\n',
                            pathlib.Path(example).read_text(encoding="utf-8")))
    without = json.loads(simulate(plain, "-o", "json").stdout)
    assert (compressed["compression"], without["compression"]) == ("assumed", "none")
    assert compressed["jobs"][0]["stages"] == 6 and without["jobs"][0]["stages"] == 3
    assert compressed["jobs"][0]["step_s"] < 0.8 * without["jobs"][0]["step_s"]
    plain.write_text(plain.read_text().replace("none", "adatopk"))
    refused = simulate(plain, check=False)
    assert refused.returncode != 0
    assert 'no policy "adatopk"' in refused.stderr and "one of: none (" in refused.stderr


def test_ten_thousand_peers_twice_are_one_result(tmp_path):
    path = small(tmp_path)
    first, again = (json.loads(simulate(path, "-o", "json").stdout) for _ in range(2))
    assert first["hash"] == again["hash"]
    assert first["peers"] > 10000 and len(first["jobs"]) == 5
    assert max(job["stages"] for job in first["jobs"]) == 64
    assert all(job["phase"] == "finished" for job in first["jobs"])
    assert first["peak_memory_bytes"] < 2 << 30
    other = json.loads(simulate(path, "-o", "json", "--seed", "8").stdout)
    assert other["hash"] != first["hash"] and other["seed"] == 8


def test_the_trace_is_a_picture_of_every_stage(tmp_path):
    trace = tmp_path / "trace.json"
    simulate(os.path.join(EXAMPLES, "two_sites.toml"), "--trace", trace, "--trace-job", "gpt", "--trace-steps", "1")
    events = json.loads(trace.read_text())["traceEvents"]
    work = [e for e in events if e["ph"] == "X" and e["name"].startswith(("forward", "backward"))]
    # 64 micro-batches on each of six stages, the backward in two parts; more where it was deployed again.
    first = min(e["ts"] for e in work)
    work = [e for e in work if e["args"]["step"] == 1 and e["ts"] < first + 60e6]
    assert len(work) == 64 * 6 * 3
    assert {e["tid"] for e in work} == {1, 2, 3, 4, 5, 6}
    assert all(e["dur"] > 0 for e in work)
    for row in range(1, 7):
        spans = sorted((e["ts"], e["dur"]) for e in work if e["tid"] == row)
        assert all(a[0] + a[1] <= b[0] + 0.01 for a, b in zip(spans, spans[1:])), "one thing at a time"


def test_a_job_file_is_played_with_its_own_model(folder):
    job = harness.gpt_job(folder, stages=2, batch=8)
    scenario = os.path.join(folder, "scenario.toml")
    pathlib.Path(scenario).write_text('[[site]]\nname = "lan"\nlatency_ms = 0.2\nbandwidth_mbit_s = 1000\n'
                        '[[peers]]\nname = "p"\nsite = "lan"\ncount = 3\ngflops = 20\n'
                        f'[[job]]\nname = "own"\nfile = "{os.path.relpath(job, folder)}"\nsteps = 4\n')
    outcome = json.loads(simulate(scenario, "-o", "json").stdout)
    assert outcome["jobs"][0]["phase"] == "finished", outcome["jobs"]
    assert outcome["jobs"][0]["stages"] == 2 and outcome["jobs"][0]["steps"] == 4


def test_errors_name_the_place(tmp_path):
    for edit, said in ((lambda t: t.replace("gflops", "gflop", 1), "unknown key gflop"),
                       (lambda t: t.replace('site = "region"', 'site = "mars"', 1), 'site "mars", which is none'),
                       (lambda t: t.replace("batch = 64", "batch = 0", 1), "no batch"),
                       (lambda t: t.replace('precision = "bf16"', 'precision = "int4"', 1), 'no precision "int4"'),
                       (lambda t: t + '[[churn]]\ntrace = "gone.csv"\n', "gone.csv"),
                       (lambda t: "x = [\n", "scenario.toml")):
        run = simulate(small(tmp_path, edit), check=False)
        assert run.returncode != 0 and said in run.stderr, (said, run.stderr)
    run = simulate(small(tmp_path), "--trace", tmp_path / "t.json", "--trace-job", "smal", check=False)
    assert run.returncode != 0 and 'no job "smal"' in run.stderr
    run = simulate(tmp_path / "none.toml", check=False)
    assert run.returncode != 0 and "none.toml" in run.stderr
