#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests.
#   scripts/test.sh          every test
#   scripts/test.sh fast     the fast tier only (under two minutes once built)
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps
scripts/build
select=()
[ "${1:-all}" = fast ] && select=(-L fast)
ctest --test-dir "${WEFT_BUILD_DIR:-build}" --output-on-failure --no-tests=error -j 2 "${select[@]}"
