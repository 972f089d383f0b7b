#!/usr/bin/env python3
"""Throughput of ModelInfer, relative to Forward, for the same batches.

  MOE_BIN_DIR=build/release/bin tests/bench/protocols_bench.py [SECONDS]

The load comes from h2load (package nghttp2-client), which sends and receives
bytes and knows neither protocol. Rounds of both alternate, and the best of each
counts: what else runs on the machine only ever takes away.
"""

import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(FOLDER))
sys.path.insert(0, os.path.join(SOURCE, "tests", "integration"))
os.environ.setdefault("MOE_PROTO_DIR", os.path.join(SOURCE, "proto"))
os.environ.setdefault("MOE_PROTOC", "/usr/bin/protoc")
os.environ.setdefault("MOE_GRPC_PYTHON_PLUGIN", "/usr/bin/grpc_python_plugin")

import harness  # noqa: E402
import inference_harness  # noqa: E402
from harness import pb  # noqa: E402
from inference_harness import oip  # noqa: E402

SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
ROUNDS = 5
D_MODEL = 256  # of the demo model
LAYER = 2  # the cheapest: the protocol is the more visible


def requests(tokens):
    states = harness.random_states(tokens, D_MODEL, 1)
    forward = pb.ForwardRequest(
        model="demo", layer=LAYER, hidden_states=states
    )
    infer = oip.ModelInferRequest(
        model_name=f"demo.layers.{LAYER}", raw_input_contents=[states.data]
    )
    infer.inputs.add(
        name="hidden_states", datatype="FP32", shape=[tokens, D_MODEL]
    )
    return forward, infer


def throughput(server, method, request):
    """Requests per second."""
    message = request.SerializeToString()
    with tempfile.NamedTemporaryFile() as body:
        body.write(struct.pack(">BI", 0, len(message)) + message)
        body.flush()
        output = subprocess.run(
            [
                "h2load",
                f"--duration={SECONDS}",
                "--warm-up-time=1",
                "-c2",
                "-m8",
                f"-d{body.name}",
                "-Hcontent-type: application/grpc",
                "-Hte: trailers",
                f"http://{server.grpc_address}/{method}",
            ],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    done = re.search(r"finished in [^,]+, ([0-9.]+) req/s", output)
    counts = re.search(r"(\d+) succeeded, (\d+) failed", output)
    if not done or int(counts[2]) or not int(counts[1]):
        raise AssertionError(output)
    return float(done[1])


def main():
    with harness.Server("--demo") as server, server.channel() as channel:
        print("tokens  Forward/s  ModelInfer/s  ratio of bests  of medians")
        for tokens in (1, 64, 1024):
            forward, infer = requests(tokens)
            # h2load counts errors as answers: these are none, and are equal.
            output = harness.stub(channel).Forward(forward).output.data
            response = inference_harness.stub(channel).ModelInfer(infer)
            assert response.raw_output_contents[0] == output
            rates = ([], [])
            for _ in range(ROUNDS):
                for results, method, request in (
                    (rates[0], "moe.v1.MoeService/Forward", forward),
                    (
                        rates[1],
                        "inference.GRPCInferenceService/ModelInfer",
                        infer,
                    ),
                ):
                    results.append(throughput(server, method, request))
            best = [max(results) for results in rates]
            median = [statistics.median(results) for results in rates]
            print(
                f"{tokens:6} {best[0]:10.0f} {best[1]:13.0f}"
                f" {best[1] / best[0]:15.3f} {median[1] / median[0]:11.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
