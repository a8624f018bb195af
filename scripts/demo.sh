#!/usr/bin/env bash
# Trains a GPT on the King James Bible over a broker and four peer processes on this machine.
# Installs what is missing and builds first. Everything it makes is in demo-out/ (or $1).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps
scripts/build weft weftd weft-broker weft-worker

out=${1:-$PWD/demo-out}
mkdir -p "$out"
examples=$PWD/examples
export PATH=$PWD/build/bin:$PWD/.venv/bin:$PATH
export XDG_STATE_HOME=$out/state XDG_CONFIG_HOME=$out/config # leaves a login of yours alone
cp "$examples/gpt.toml" "$out/" # its paths are relative to itself
cd "$out"

# 1. Export a model with plain PyTorch, and look at it.
python "$examples/export_gpt.py" --out gpt.pt2
weft model inspect gpt.pt2
weft model check gpt.pt2 --stages 3

# 2. Real text: the King James Bible of Debian's bible-kjv-text, one token a byte.
bible -f 'Gen1:1-Rev22:21' </dev/null | sed 's/^[^ ]* //' >book.txt
weft data tokens --text book.txt --out book

# 3. A cluster on this machine, ended with this script.
trap 'weft down >/dev/null 2>&1 || true' EXIT
weft up --peers 4

# 4. The job: checked, planned, trained, evaluated, exported.
weft job submit gpt.toml --dry-run
weft job submit gpt.toml --watch
weft job explain gpt
weft job get gpt -o json >job.json
weft checkpoint export gpt --out gpt.safetensors

# 5. The same weights in plain PyTorch, and a plain PyTorch run of the same configuration.
python "$examples/train_gpt.py" --train book.train.bin --eval book.eval.bin --eval-batches 40 | tee pytorch.log | tail -2
python "$examples/eval_gpt.py" --weights gpt.safetensors --data book.eval.bin --batches 40 >exported.log
python - <<'END'
import json

job = json.load(open("job.json"))
plain = float(open("pytorch.log").read().split()[-1])
theirs = float(open("exported.log").read().split()[-1])
print(f"first training loss     {job['first_loss']:.6f}")
print(f"plain PyTorch run, eval {plain:.6f}   (same configuration, one process, other sample order)")
print(f"eval loss by the peers  {job['eval_loss']:.6f}")
print(f"eval loss by PyTorch    {theirs:.6f}   (from the exported safetensors)")
assert abs(job["eval_loss"] - theirs) < 1e-4, "the exported weights evaluate differently"
assert job["eval_loss"] < 0.55 * job["first_loss"], "the model did not learn"
END
