#!/bin/sh
# Usage: tests/fuzz/run.sh SECONDS [TARGET...]
#
# Builds the fuzz targets with clang and libFuzzer and runs each one (or those
# named) for SECONDS, starting from its corpus, JOBS of them at a time (from the
# environment, 1). Stops at the first crash, with the name of the input: minimise
# it, add it to the corpus, and fix the bug. New inputs that reach new code stay
# in build/fuzz/corpus.
set -eu

if [ $# -lt 1 ]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
seconds=$1
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/fuzz

clang=${CXX:-}
for name in clang++ clang++-19 clang++-14; do
  [ -n "$clang" ] || clang=$(command -v "$name" || true)
done
if [ -z "$clang" ]; then
  echo "run.sh: no clang++ found: apt-get install clang" >&2
  exit 2
fi

cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_COMPILER="$clang" -DMOE_FUZZ=ON \
  -DMOE_SANITIZE=address,undefined,fuzzer-no-link >/dev/null
cmake --build "$build" --target "${@:-fuzz_targets}"

if [ $# -eq 0 ]; then
  for program in "$build"/fuzz/*; do set -- "$@" "$(basename "$program")"; done
fi
cd "$build"
mkdir -p logs
export root seconds
# 255 tells xargs to start nothing more.
# shellcheck disable=SC2016  # each sh has a $1 of its own
printf '%s\n' "$@" | xargs -n 1 -P "${JOBS:-1}" sh -c '
  mkdir -p "corpus/$1"
  if ! "fuzz/$1" -max_total_time="$seconds" -max_len=16384 -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -dict="$root/tests/fuzz/json.dict" \
    -artifact_prefix="$1-" "corpus/$1" "$root/tests/fuzz/corpus/$1" \
    >"logs/$1" 2>&1; then
    tail -n 40 "logs/$1"
    echo "run.sh: $1 found a bug; the input is in $PWD, as $1-*" >&2
    exit 255
  fi
  executions=$(sed -n "s/^stat::number_of_executed_units: *//p" "logs/$1")
  coverage=$(sed -n "s/.*\(cov: [0-9]* ft: [0-9]*\).*/\1/p" "logs/$1" | tail -n 1)
  echo "$1: $seconds s, $executions executions, $coverage"
' run_target
echo "no crash"
