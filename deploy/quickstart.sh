#!/usr/bin/env bash
# From a fresh Debian 12 or 13 machine to a served model and a first answer.
#
#   deploy/quickstart.sh [--once] [SERVER_FLAG...]
#
# Installs what is missing, builds the programs, starts moe-server with its
# built-in demo model, sends a batch, shows the answer and some live metrics,
# then keeps serving until Ctrl-C.
#
#   --once       stop the server after the first batch and exit
#   SERVER_FLAG  passed on to moe-server, such as
#                --listen_address=127.0.0.1:6000 or --metrics_address=...
#
# Without these two flags the default ports are used or, where another program
# holds one, a free port. Ends with 0 only if everything worked.
set -euo pipefail

say() { printf '\n== %s\n' "$*"; }
die() {
  echo "quickstart: $*" >&2
  exit 1
}

once=0
listen=''
metrics=''
flags=()
for argument; do
  case $argument in
    --once) once=1 ;;
    --listen_address=*) listen=${argument#*=} ;;
    --metrics_address=*) metrics=${argument#*=} ;;
    -h | --help)
      sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    --*) flags+=("$argument") ;;
    *) die "unknown argument '$argument' (see --help)" ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=build/release/bin

# ---- build ------------------------------------------------------------------
say "1/4 packages"
deploy/install_dependencies.sh build

say "2/4 build (some minutes the first time, seconds after that)"
# A folder that is configured already keeps its options, tests among them: only
# the programs are built here.
configure=(cmake --preset release)
if [ ! -f build/release/CMakeCache.txt ]; then
  configure+=(-DMOE_BUILD_TESTS=OFF)
fi
"${configure[@]}"
NINJA_STATUS='[%f/%t %es] ' cmake --build --preset release \
  --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" \
  --target programs

# ---- serve ------------------------------------------------------------------
# True if something accepts connections on 127.0.0.1:PORT.
port_is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Prints the default address, or one with a free port if it is taken.
free_address() {
  local flag=$1 port=$2
  if port_is_taken "$port"; then
    echo "port $port is taken, using a free one (or choose: $flag=HOST:PORT)" >&2
    port=0
  fi
  echo "127.0.0.1:$port"
}

say "3/4 start moe-server"
listen=${listen:-$(free_address --listen_address 50051)}
metrics=${metrics:-$(free_address --metrics_address 9464)}

scratch=$(mktemp -d)
server=''
stop_server() {
  local status=0
  if [ -n "$server" ]; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" || status=$?
    server=''
  fi
  return "$status"
}
trap 'stop_server || true; rm -rf "$scratch"' EXIT
trap 'exit 143' TERM HUP

# In a session of its own, so that Ctrl-C reaches this script alone, which then
# stops the server. Should this script be killed, the kernel ends the server.
setsid setpriv --pdeathsig TERM "$bin/moe-server" --demo \
  --listen_address="$listen" --metrics_address="$metrics" "${flags[@]}" \
  </dev/null >"$scratch/stdout" 2>"$scratch/stderr" &
server=$!

ready_line() { grep -m 1 '^READY ' "$scratch/stdout"; }
ready_timeout_seconds=${QUICKSTART_READY_TIMEOUT_SECONDS:-120}
began=$SECONDS
until ready=$(ready_line); do
  if ! kill -0 "$server" 2>/dev/null; then
    cat "$scratch/stderr" >&2
    die "moe-server ended before it was ready; its log is above"
  fi
  if [ $((SECONDS - began)) -ge "$ready_timeout_seconds" ]; then
    cat "$scratch/stderr" >&2
    die "moe-server was not ready within $ready_timeout_seconds s;" \
      "its log is above"
  fi
  sleep 0.1
done
echo "$ready"
grpc=${ready#*grpc=}
grpc=${grpc%% *}
metrics=${ready#*metrics=}
metrics=${metrics%% *}

# ---- use --------------------------------------------------------------------
say "4/4 send a batch of 4 random tokens to layer 0 of the model 'demo'"
forward=(moe-client forward --server="$grpc" --model=demo --layer=0 --random=4)
echo "\$ $bin/${forward[*]}"
"$bin/${forward[0]}" "${forward[@]:1}"

# Prints the metrics page. In bash itself, since a small system has no curl.
scrape() {
  exec 3<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  tr -d '\r' <&3 | sed '1,/^$/d'
  exec 3<&-
}

say "live metrics, an excerpt of http://$metrics/metrics"
scrape >"$scratch/metrics"
awk '$NF == 0 { next }
     /^moe_(build_info|tokens_total)/ { print; next }
     /^moe_request(s_total|_duration_seconds_(sum|count))/ { print; seen++ }
     /^moe_expert_tokens_total/ && experts++ < 4 { print }
     END { exit !seen }' "$scratch/metrics" ||
  die "the metrics page shows no request"

finish() {
  stop_server || die "moe-server ended with $? after SIGTERM, not 0"
  say "done: moe-server drained and ended with 0"
  exit 0
}
if [ "$once" = 1 ]; then
  finish
fi
trap finish INT
say "serving on $grpc, metrics on http://$metrics/metrics; Ctrl-C stops"
status=0
wait "$server" || status=$?
server=''
cat "$scratch/stderr" >&2
die "moe-server ended by itself with $status; its log is above"
