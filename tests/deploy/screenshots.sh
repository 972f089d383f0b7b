#!/usr/bin/env bash
# Makes the pictures of deploy/images from a running system, built before:
#
#   tests/deploy/screenshots.sh
#
# Needs the packages prometheus, chromium and fonts-dejavu-core, and, for small
# files, pngquant. MINUTES in the environment is how long the load runs, 5 if
# it is not set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

MOE_BIN_DIR=$PWD/build/release/bin MOE_PROTO_DIR=$PWD/proto \
  MOE_PROTOC=$(command -v protoc) \
  MOE_GRPC_PYTHON_PLUGIN=$(command -v grpc_python_plugin) \
  PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 tests/deploy/screenshots.py
ls -l deploy/images
