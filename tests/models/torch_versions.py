#!/usr/bin/env python3
"""Archives written by other versions of PyTorch, against those versions' own numbers.

For each version a venv is made from PyPI (about 5 GB, one at a time, removed afterwards); that torch
exports the models and computes loss and gradients; then slow_executor_test, built on the pinned
torch, imports the archives and compares: the tests of the zoo and of the spine, unchanged. Not part
of CI: it downloads gigabytes. Prints one row of the table of docs/models.md a version.

Usage: torch_versions.py [--work DIR] [--build DIR] [--keep] [--models NAME,...] VERSION...
VERSION is one of TORCHVISION below. A finished venv DIR/VERSION is used as it is.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The torchvision that belongs to each torch.
TORCHVISION = {"2.9.1": "0.24.1", "2.10.0": "0.25.0", "2.11.0": "0.26.0", "2.12.1": "0.27.1",
               "2.13.0": "0.28.0", "2.14.1": "0.29.1", "2.15.0": "0.29.2"}
SPINE = ["gpt2", "resnet18"]
ZOO = ["bert", "t5", "vit", "unet", "stereo", "lstm", "moe", "nested", "edges", "buffers", "tied",
       "no_grad", "checkpointed"]


def pinned(name):
    text = (ROOT / "scripts/dependencies.txt").read_text(encoding="utf-8")
    return re.search(rf"^pip ({name}==\S+)$", text, re.M)[1]


def venv(folder, version):
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "-q", "--no-cache-dir",
                        f"torch=={version}", f"torchvision=={TORCHVISION[version]}",
                        *(pinned(name) for name in ("transformers", "safetensors", "numpy"))],
                       check=True)
    return python


def export(python, folder, zoo):
    """Writes archives and references; returns the names that this torch could not export."""
    scripts = ROOT / "tests/models"
    failed = []
    for name in SPINE:
        codes = [subprocess.run([python, scripts / script, flag, folder, name], check=False).returncode
                 for script, flag in (("export_models.py", "--out"), ("reference.py", "--dir"))]
        failed += [name] if any(codes) else []
    ended = subprocess.run([python, scripts / "zoo.py", "--out", folder / "zoo", *zoo], check=False,
                           stderr=subprocess.PIPE, text=True)
    sys.stderr.write(ended.stderr)
    told = re.search(r"^failed: (.*)$", ended.stderr, re.M)
    return failed + (told[1].split(", ") if told else [])


def compare(build, folder, names):
    """The names whose tests all passed, the names whose did not, and what was said."""
    wanted = [f"*Equality.*/{n}" for n in names if n in SPINE]
    wanted += [f"*Zoo.*/{n}" for n in names if n not in SPINE]
    report = folder / "report.json"
    environment = dict(os.environ, WEFT_MODELS=str(folder), WEFT_SOURCE_DIR=str(ROOT))
    subprocess.run([build / "tests/slow_executor_test", "--gtest_filter=" + ":".join(wanted),
                    "--gtest_brief=1", f"--gtest_output=json:{report}"], env=environment, check=False)
    broken, seen = {}, set()
    for suite in json.loads(report.read_text(encoding="utf-8"))["testsuites"]:
        for test in suite["testsuite"]:
            name = test["name"].split("/")[1]
            seen.add(name)
            if "failures" in test:
                broken.setdefault(name, []).append(test["failures"][0]["failure"])
    assert seen == set(names), (seen, names)
    return broken


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/torch-versions")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--keep", action="store_true", help="leave the venvs")
    parser.add_argument("--models", type=lambda text: text.split(","), default=ZOO,
                        help="names of zoo.py, in place of a choice")
    parser.add_argument("versions", nargs="+", choices=list(TORCHVISION))
    options = parser.parse_args()
    different = False
    for version in options.versions:
        folder = options.work / ("models-" + version)
        (folder / "zoo").mkdir(parents=True, exist_ok=True)
        failed = export(venv(options.work / version, version), folder, options.models)
        names = [n for n in SPINE + options.models if n not in failed]
        broken = compare(options.build, folder, names)
        for name, told in broken.items():
            print(f"{version} {name}:\n{told[0]}", flush=True)
        program = json.loads(subprocess.run(
            ["unzip", "-p", folder / "gpt2.pt2", "*/models/model.json"], check=True,
            capture_output=True).stdout)["schema_version"]
        different |= bool(broken)
        print(f"| {version} | {program['major']}.{program['minor']} | {len(names)} of "
              f"{len(SPINE + options.models)}{': not ' + ', '.join(failed) if failed else ''} "
              f"| {len(names) - len(broken)} equal{'; not ' + ', '.join(broken) if broken else ''} |",
              flush=True)
        if not options.keep:
            shutil.rmtree(options.work / version)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
