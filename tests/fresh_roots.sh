#!/usr/bin/env bash
# The README's two commands in fresh roots of Debian, where nothing is installed
# that they do not install themselves:
#
#   tests/fresh_roots.sh [--quick] [SUITE...]
#
#   SUITE    Debian releases by their names; bookworm and trixie if none is given
#   --quick  only deploy/quickstart.sh --once, not tests/run.sh
#
# Makes a root of each release with mmdebstrap, copies the sources of HEAD into
# it and runs the commands there, one release after the other. Ends with a table
# of what passed and how long it took, and with 0 only if all of it did.
#
# Needs root, mmdebstrap, git, and about 5 GB below TMPDIR (/var/tmp by default).
# What is mounted is so in a mount namespace of the commands alone, and what
# runs in a process namespace: both end with them, however this script ends.
#
# MOE_APT_DIR=DIR   settings of apt that this network needs: DIR is laid over
#                   /etc/apt of the roots, and what is in DIR/apt.conf.d counts
#                   while they are made, too. Without it nothing of this host's
#                   apt gets into a root.
# MOE_MIRROR=URL    where roots are made from, in place of deb.debian.org
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  echo "fresh_roots: $*" >&2
  exit 2
}

quick=0
suites=()
for argument; do
  case $argument in
    --quick) quick=1 ;;
    -h | --help)
      sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    -*) die "unknown option '$argument' (see --help)" ;;
    *) suites+=("$argument") ;;
  esac
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
commands=('deploy/quickstart.sh --once')
[ "$quick" = 1 ] || commands+=('tests/run.sh')

[ "$(id -u)" = 0 ] || die "want root, to make roots and change into them"
for tool in mmdebstrap git unshare; do
  command -v "$tool" >/dev/null || die "missing $tool: apt-get install $tool"
done
if [ -n "${MOE_APT_DIR:-}" ] && [ ! -d "$MOE_APT_DIR" ]; then
  die "MOE_APT_DIR: want a folder, got '$MOE_APT_DIR'"
fi
git diff --quiet HEAD || echo "note: what is not committed is not tested" >&2

work=$(mktemp -d "${TMPDIR:-/var/tmp}/fresh-roots-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say() { printf '\n######## %s\n' "$*"; }

# make_root SUITE DIR: a root with the sources in /src.
make_root() {
  local suite=$1 root=$2 file
  local options=(--variant=minbase --include=ca-certificates --quiet)
  if [ -n "${MOE_APT_DIR:-}" ]; then
    for file in "$MOE_APT_DIR"/apt.conf.d/*; do
      if [ -f "$file" ]; then options+=(--aptopt="$file"); fi
    done
  fi
  mmdebstrap "${options[@]}" "$suite" "$root" ${MOE_MIRROR:+"$MOE_MIRROR"} ||
    return
  if [ -n "${MOE_APT_DIR:-}" ]; then
    cp -rL "$MOE_APT_DIR/." "$root/etc/apt/" || return
  fi
  # The same servers answer for names inside.
  rm -f "$root/etc/resolv.conf"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf" || return
  mkdir "$root/src" && git archive HEAD | tar -x -C "$root/src"
}

# enter DIR COMMAND: runs it in /src of a root, with nothing of this shell's
# environment but what builds and networks need.
enter() {
  local root=$1 command=$2 name
  local environment=(HOME=/root "TERM=${TERM:-dumb}" LC_ALL=C.UTF-8
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  for name in CMAKE_BUILD_PARALLEL_LEVEL http_proxy https_proxy no_proxy; do
    if [ -n "${!name:-}" ]; then environment+=("$name=${!name}"); fi
  done
  # shellcheck disable=SC2016  # $0 and $1 are of the inner shell
  unshare --mount --propagation private --pid --fork --kill-child \
    env -i "${environment[@]}" sh -c '
      set -e
      mount -t proc proc "$0/proc"
      mount --rbind /sys "$0/sys"
      mount -t tmpfs -o mode=1777 shm "$0/dev/shm"
      exec chroot "$0" sh -c "cd /src && exec $1"' \
    "$root" "$command" </dev/null
}

failed=0
rows=()
# record SUITE COMMAND SECONDS STATUS
record() {
  local verdict=passed
  if [ "$4" != 0 ]; then
    verdict="FAILED ($4)"
    failed=1
  fi
  rows+=("$(printf '%-9s %-30s %6d s  %s' "$1" "$2" "$3" "$verdict")")
}

for suite in "${suites[@]}"; do
  say "$suite: make a root"
  root=$work/$suite
  began=$SECONDS
  status=0
  make_root "$suite" "$root" || status=$?
  record "$suite" "make a root" $((SECONDS - began)) "$status"
  if [ "$status" = 0 ]; then
    for command in "${commands[@]}"; do
      say "$suite: $command"
      began=$SECONDS
      status=0
      enter "$root" "$command" || status=$?
      record "$suite" "$command" $((SECONDS - began)) "$status"
    done
  fi
  rm -rf --one-file-system "$root"
done

say "summary"
printf '%s\n' "${rows[@]}"
exit "$failed"
