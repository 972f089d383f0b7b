#!/usr/bin/env bash
# Installs what is missing, builds the optimised preset and runs every test.
#
#   tests/run.sh [CTEST_OPTION...]
#
# Options go to ctest: "-L unit" runs one kind of test, "-R TopK" the tests of
# that name, "-j1" one at a time. Ends with ctest's summary and its exit code.
#
# MOE_WERROR=ON in the environment makes compiler warnings errors.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

say "1/3 packages"
deploy/install_dependencies.sh build test

say "2/3 build (some minutes the first time, seconds after that)"
cmake --preset release -DMOE_BUILD_TESTS=ON -DMOE_WERROR="${MOE_WERROR:-OFF}"
NINJA_STATUS='[%f/%t %es] ' cmake --build --preset release --parallel "$jobs"

say "3/3 tests"
ctest --preset release --parallel "$jobs" "$@"
