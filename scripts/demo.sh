#!/usr/bin/env bash
# Trains a GPT on the King James Bible over a broker and four peer processes on this machine.
# Installs what is missing and builds first. Everything it makes is in demo-out/ (or $1).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps
scripts/build

out=${1:-$PWD/demo-out}
mkdir -p "$out"
export PATH=$PWD/build/bin:$PATH
export XDG_STATE_HOME=$out/state XDG_CONFIG_HOME=$out/config # leave a real login of yours alone
python=.venv/bin/python
steps=${WEFT_DEMO_STEPS:-200}

# 1. Export a model with plain PyTorch, and look at it.
$python examples/export_gpt.py --out "$out/gpt.pt2"
weft model inspect "$out/gpt.pt2"
weft model check "$out/gpt.pt2" --stages 3

# 2. Real text: the King James Bible from Debian's bible-kjv-text, as byte tokens.
bible -f 'Gen1:1-Rev22:21' </dev/null | sed 's/^[^ ]* //' >"$out/book.txt"
weft data tokens --text "$out/book.txt" --out "$out/book"

# 3. A cluster on this machine, ended when this script ends.
trap 'weft down >/dev/null 2>&1 || true' EXIT
weft up --peers 4

# 4. The job.
sed -e "s|@OUT@|$out|g" examples/gpt.toml >"$out/gpt.toml"
weft job submit "$out/gpt.toml" --set "train.steps=$steps" --dry-run
weft job submit "$out/gpt.toml" --set "train.steps=$steps" --watch
weft job explain gpt
weft checkpoint export gpt --out "$out/gpt.safetensors"

# 5. The same weights in plain PyTorch, and a plain PyTorch run of the same configuration.
$python examples/train_gpt.py --tokens "$out/book" --steps "$steps"
weft job get gpt -o json >"$out/job.json"
$python examples/eval_gpt.py --weights "$out/gpt.safetensors" --tokens "$out/book" --job "$out/job.json"
