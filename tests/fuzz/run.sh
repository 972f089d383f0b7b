#!/bin/sh
# Usage: tests/fuzz/run.sh SECONDS [TARGET...]
#
# Builds the fuzz targets with clang and libFuzzer and runs each one (or those
# named) for SECONDS, starting from its corpus. Stops at the first crash, with
# the name of the input: minimise it, add it to the corpus, and fix the bug.
# New inputs that reach new code stay in build/fuzz/corpus.
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
cmake --build "$build" --target fuzz_targets

if [ $# -eq 0 ]; then
  for program in "$build"/fuzz/*; do set -- "$@" "$(basename "$program")"; done
fi
cd "$build"
mkdir -p logs
for target; do
  echo "== $target, $seconds s"
  mkdir -p "corpus/$target"
  if ! "fuzz/$target" -max_total_time="$seconds" -max_len=16384 -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -dict="$root/tests/fuzz/json.dict" \
    "corpus/$target" "$root/tests/fuzz/corpus/$target" \
    >"logs/$target" 2>&1; then
    tail -n 40 "logs/$target"
    echo "run.sh: $target found a bug; the input is in $build" >&2
    exit 1
  fi
  grep '^stat::' "logs/$target"
done
echo "no crash"
