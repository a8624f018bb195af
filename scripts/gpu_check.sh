#!/usr/bin/env bash
# On a machine with a CUDA card: builds the worker with CUDA, runs the tests of tests/gpu/ and
# bench/executor, and writes what they say to $OUT, or to docs/results/ under the card's name.
#   scripts/gpu_check.sh [build|tests|bench]...   all three by default
#   scripts/gpu_check.sh opdb                     every allowed operator on the card against PyTorch's
#                                                 there; after build; six minutes on 16 cores
#   scripts/gpu_check.sh profile                  what the measured profile of the card predicts, and what
#                                                 models take; after build; two minutes
#   scripts/gpu_check.sh carry                    fills .gpu-carry/ with files of Debian packages, for
#                                                 a machine that has a compiler, CMake, ninja, Boost,
#                                                 OpenSSL, GoogleTest and PyTorch and can install
#                                                 nothing, and the programs of build/; copy the tree
#                                                 there with that folder
# WEFT_PYTHON names a Python with torch, transformers, torchvision, safetensors (else .venv, python3);
# WEFT_BENCH_ARGS go to bench/executor, WEFT_PROFILE_ARGS to bench/peer_profile.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
carry=$root/.gpu-carry
build=${WEFT_BUILD_DIR:-$root/build-gpu}
python=${WEFT_PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  [ -x .venv/bin/python ] && python=$root/.venv/bin/python
fi

# Headers and libraries of what the worker needs beyond the compiler's machine.
fill_carry() {
  local packages=(libfmt-dev libfmt9 libspdlog-dev libspdlog1.10 libxxhash-dev libxxhash0
    libpcre2-dev libpcre2-8-0 libtomlplusplus-dev libtomlplusplus3 nlohmann-json3-dev zlib1g-dev)
  local folder
  folder=$(mktemp -d)
  (cd "$folder" && apt-get download -qq "${packages[@]}")
  rm -rf "$carry" && mkdir -p "$carry"
  for package in "$folder"/*.deb; do dpkg -x "$package" "$carry"; done
  rm -rf "$folder" "$carry"/usr/share/{doc,man} "$carry"/usr/bin
  # Other versions of transformers export other graphs; PyTorch's operator database needs expecttest.
  local pinned
  for pinned in transformers expecttest; do
    "$python" -m pip download -q --no-deps -d "$carry/wheels" \
      "$(sed -n "s/^pip \($pinned==.*\)/\1/p" scripts/dependencies.txt)"
  done
  "$python" -m pip download -q -d "$carry/wheels" \
    "$(sed -n 's/^pip \(pytest==.*\)/\1/p' scripts/dependencies.txt)"
  carry_programs
  # Links to libraries of packages that were left out.
  find "$carry" -xtype l -delete
  du -sh "$carry"
}

# Programs that need what such a machine has no headers of, as build/ has them, with their libraries.
carry_programs() {
  local name library
  mkdir -p "$carry/programs" "$carry/lib"
  for name in weft weftd weft-broker; do
    [ -x "build/bin/$name" ] || { echo "gpu_check.sh: build/bin/$name is missing: run scripts/build" >&2; exit 1; }
    strip -o "$carry/programs/$name" "build/bin/$name"
    ldd "build/bin/$name" | awk '/=> \//{print $3}'
  done | sort -u | while read -r library; do
    case ${library##*/} in
      libc.so* | libm.so* | libpthread* | libresolv* | libstdc++* | libgcc_s* | libssl* | libcrypto*) ;;
      *) cp -L "$library" "$carry/lib/" ;;
    esac
  done
}

configure_and_build() {
  local flags=() libraries=$carry/usr/lib/x86_64-linux-gnu
  if [ -d "$carry" ]; then
    flags=(-DCMAKE_PREFIX_PATH="$carry/usr"
      -DCMAKE_CXX_FLAGS="-isystem $carry/usr/include -isystem $carry/usr/include/x86_64-linux-gnu"
      -DCMAKE_EXE_LINKER_FLAGS="-L$libraries -Wl,-rpath,$libraries -Wl,-rpath-link,$libraries")
  fi
  cmake -S . -B "$build" -G Ninja -DWEFT_WORKER_ONLY=ON -DWEFT_WERROR=OFF -DWEFT_CUDA=ON \
    "${flags[@]}"
  # A unit that includes libtorch takes a gigabyte.
  local jobs=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 1500000)) cores
  cores=$(nproc)
  [ "$jobs" -gt "$cores" ] && jobs=$cores
  [ "$jobs" -lt 1 ] && jobs=1
  ninja -C "$build" -j "$jobs" -k 0 weft-worker gpu_executor_test bench-executor bench-profile
  "$build/bin/weft-worker" --version
}

# The pinned Python packages that were carried go before the machine's own.
use_carried_python() {
  [ -d "$carry/wheels" ] || return 0
  [ -d "$build/site" ] || "$python" -m pip install -q --no-index --no-deps --no-compile \
    --target "$build/site" "$carry"/wheels/*.whl
  export PYTHONPATH=$build/site${PYTHONPATH:+:$PYTHONPATH}
}

card_name() { nvidia-smi --query-gpu=name --format=csv,noheader | head -1; }

if [ "${1:-}" = carry ]; then
  fill_carry
  exit
fi
parts=" ${*:-build tests bench} "
status=0
if [[ $parts == *" build "* ]]; then configure_and_build; fi
use_carried_python
card=$(card_name)
slug=$(tr 'A-Z ' 'a-z-' <<<"$card" | tr -cd 'a-z0-9.-')
results=${OUT:-$root/docs/results}
mkdir -p "$results"
echo "card: $card; results: $results/gpu-$slug-*"

# Each part runs whatever became of the others.
run_tests() {
  local models=$build/gpu-models failed=0
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
  "$python" tests/models/export_models.py --out "$models" || failed=1
  "$python" tests/models/reference.py --device cuda --dir "$models" || failed=1
  "$python" tests/models/zoo.py --device cuda --out "$models/zoo" || failed=1
  WEFT_MODELS=$models "$build/tests/gpu_executor_test" || failed=1
  # The real worker, jailed, as a daemon starts it.
  WEFT_TEST_DEVICE=cuda:0 WEFT_BIN_DIR=$build/bin WEFT_SOURCE_DIR=$root "$python" -m pytest -q \
    tests/integration/worker_test.py -k "one_stage_learns or resume_with or lost_daemon" || failed=1
  # Two workers on one card, and on two where there are two; a broker and daemons where they were carried.
  [ -d "$carry/programs" ] && cp "$carry"/programs/* "$build/bin/"
  # File by file, so that a run that is cut off has told of those before.
  local file
  for file in tests/gpu/*_test.py; do
    LD_LIBRARY_PATH=$carry/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} WEFT_BIN_DIR=$build/bin WEFT_SOURCE_DIR=$root \
      "$python" -m pytest -q -rsP "$file" || failed=1
  done
  return $failed
}

if [[ $parts == *" tests "* ]]; then
  log=$results/gpu-$slug-tests.txt
  run_tests >"$log" 2>&1 || status=1
  grep -E '^\[  (FAILED|PASSED|SKIPPED)|^\[==|differ|bf16|fp16|SKIPPED|passed|Failure|rror' "$log" | tail -90
fi
# Cases and PyTorch's numbers on the card: one process a core, each with a part of the operators. What
# they have after WEFT_OP_DB_EXPORT_SECONDS is lost: such a shard is named. Then one run over all.
run_opdb() {
  local cases=$build/op-db shards failed=0 names= i
  shards=$(nproc)
  [ "$shards" -gt 16 ] && shards=16
  rm -rf "$cases" && mkdir -p "$cases"
  for ((i = 0; i < shards; ++i)); do
    OMP_NUM_THREADS=1 timeout "${WEFT_OP_DB_EXPORT_SECONDS:-150}" "$python" \
      tests/models/op_db_export.py --out "$cases/$i" --limit-per-overload 1 \
      --device "${WEFT_OP_DB_DEVICE:-cuda:0}" --shard "$i/$shards" >"$cases/$i.log" 2>&1 &
  done
  wait
  for ((i = 0; i < shards; ++i)); do
    if [ -f "$cases/$i/cases.json" ]; then
      names=$names${names:+:}$cases/$i
    else
      echo "shard $i of $shards made no cases: $(tail -1 "$cases/$i.log")"
      failed=1
    fi
  done
  WEFT_OP_DB_SHARDS=$names WEFT_OP_DB_SECONDS=${WEFT_OP_DB_SECONDS:-180} \
    "$build/tests/gpu_executor_test" --gtest_filter='GpuOperatorDatabase*' >"$cases/run.log" 2>&1 ||
    failed=1
  grep -v 'is not captured as a CUDA graph' "$cases/run.log"  # one operator a stage: most are not
  return $failed
}

if [[ $parts == *" opdb "* ]]; then
  log=$results/gpu-$slug-opdb.txt
  run_opdb >"$log" 2>&1 || status=1
  grep -E '^torch |^shard|^\[  (FAILED|PASSED|SKIPPED)|: loss |: gradient|the cut' "$log" | tail -60
fi
if [[ $parts == *" profile "* ]]; then
  # shellcheck disable=SC2086
  "$python" bench/peer_profile --build "$build" --device cuda:0 --precision fp32 bf16 \
    ${WEFT_PROFILE_ARGS:-} | tee "$results/gpu-$slug-profile.md" || status=1
fi
if [[ $parts == *" bench "* ]]; then
  # shellcheck disable=SC2086
  "$python" bench/executor --build "$build" --json "$results/gpu-$slug-bench.json" \
    ${WEFT_BENCH_ARGS:-} 2>"$build/bench.err" | tee "$results/gpu-$slug-bench.md" ||
    { status=1 && tail -20 "$build/bench.err"; }
fi
exit $status
