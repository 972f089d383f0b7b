"""Where programs and the tests' clients are found, for the benchmarks.

Importing this reads the arguments that they share: [BIN_DIR] [SECONDS].
"""

import os
import sys

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
BIN = os.path.abspath(
    sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/build/release/bin"
)
os.environ.setdefault("MOE_BIN_DIR", BIN)
os.environ.setdefault("MOE_PROTO_DIR", f"{ROOT}/proto")
os.environ.setdefault("MOE_PROTOC", "/usr/bin/protoc")
os.environ.setdefault("MOE_GRPC_PYTHON_PLUGIN", "/usr/bin/grpc_python_plugin")
sys.path.insert(0, f"{ROOT}/tests/integration")


def seconds(default):
    return float(sys.argv[2]) if len(sys.argv) > 2 else default
