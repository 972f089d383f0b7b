#!/usr/bin/env bash
# Installs the Debian packages that this project needs; Debian 12 and 13.
#
#   deploy/install_dependencies.sh [--list] GROUP...
#
# Groups:
#   build   to compile the programs
#   test    to compile and run the tests (comes on top of build)
#   run     to run the compiled programs; all that the container image holds
#   check   what .ci/run uses on top: format, lint and shell checks, and a
#           Prometheus to ask the shipped queries of; on a machine with systemd
#           that package starts it as a service on port 9090
#
# --list prints the packages and installs nothing.
#
# This is the only list of packages in the project. Nothing is changed but the
# packages; root or sudo is asked for only if one is missing.
set -euo pipefail

say() { echo "install_dependencies: $*" >&2; }
die() {
  say "$@"
  exit 2
}
usage() { sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0"; }

# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

packages_of() {
  case $1 in
    build)
      echo g++ cmake ninja-build pkg-config \
        libdnnl-dev libhwy-dev libtbb-dev libabsl-dev nlohmann-json3-dev \
        libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev \
        protobuf-compiler libssl-dev prometheus-cpp-dev
      # The oneDNN of Debian 12 looks for OpenCL in its CMake package.
      if [ "$codename" = bookworm ]; then echo ocl-icd-opencl-dev; fi
      ;;
    test)
      # python3-grpcio is the client that nobody here wrote.
      echo libgtest-dev libgmock-dev libbenchmark-dev \
        python3-grpcio python3-protobuf
      ;;
    run)
      case $codename in
        bookworm)
          echo libdnnl2 libhwy1 libtbb12 libabsl20220623 libgrpc++1.51 \
            libprotobuf32 libprometheus-cpp-core1.0 libprometheus-cpp-pull1.0
          ;;
        trixie)
          echo libdnnl3.6 libhwy1t64 libtbb12 libabsl20240722 \
            libgrpc++1.51t64 libprotobuf32t64 libprometheus-cpp-core1.0 \
            libprometheus-cpp-pull1.0
          ;;
        *) die "run-time packages are known for Debian 12 and 13 only" ;;
      esac
      ;;
    check)
      echo shellcheck prometheus
      # Later versions format otherwise; one version decides.
      if [ "$codename" = bookworm ]; then
        echo clang-format-14 clang-tidy-14
      fi
      ;;
    *) die "unknown group '$1', want build, test, run or check" ;;
  esac
}

list=0
groups=()
for argument; do
  case $argument in
    --list) list=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) groups+=("$argument") ;;
  esac
done
if [ ${#groups[@]} -eq 0 ]; then
  usage >&2
  exit 2
fi

packages=()
for group in "${groups[@]}"; do
  names=$(packages_of "$group")
  # shellcheck disable=SC2206  # split into names on purpose
  packages+=($names)
done
if [ "$list" = 1 ]; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  if ! dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null |
    grep -q '^.i'; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} -eq 0 ]; then
  say "all ${#packages[@]} packages are installed (${groups[*]})"
  exit 0
fi

say "to install: ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || die "packages are missing; run as root:" \
    "apt-get install --no-install-recommends ${missing[*]}"
  say "asking sudo for the right to install them"
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Runs apt-get, shows one line per tenth of the way, keeps the rest in $log.
# apt reports progress as "dlstatus:ITEM:PERCENT:TEXT" and "pmstatus:...".
apt_get() {
  local what=$1
  shift
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
    apt-get -qq -o APT::Status-Fd=1 -o Dpkg::Use-Pty=0 "$@" \
    </dev/null 2>&1 | tee -a "$log" | awk -F: -v what="$what" '
      /^(dl|pm)status:/ {
        phase = ($1 == "dlstatus") ? "download" : "unpack and set up"
        tenth = int($3 / 10)
        if (phase != last_phase || tenth > last_tenth) {
          printf "install_dependencies: %s: %s %d %%\n", what, phase, $3
          fflush()
          last_phase = phase; last_tenth = tenth
        }
      }' >&2; then
    grep -vE '^(dl|pm)status:' "$log" | tail -n 20 >&2
    die "apt-get $1 failed"
  fi
}

apt_get "package lists" update
apt_get "${#missing[@]} packages" install -y --no-install-recommends \
  "${missing[@]}"
say "installed: ${missing[*]}"
