#!/usr/bin/env python3
"""Throughput of ModelInfer, relative to Forward, for the same batches.

  MOE_BIN_DIR=build/release/bin tests/bench/protocols_bench.py [SECONDS [TOKENS...]]

The load comes from h2load (package nghttp2-client), which sends and receives
bytes and knows neither protocol. Rounds of both alternate, and the best of each
counts: what else runs on the machine only ever takes away. The server's CPU
time of a request hardly depends on that at all.
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
WARM_UP_SECONDS = 1
SIZES = [int(tokens) for tokens in sys.argv[2:]] or [1, 64, 1024]
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


def cpu_seconds(process):
    """That the process has used so far."""
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def throughput(server, method, request):
    """Requests per second, and seconds of CPU that the server took for one."""
    message = request.SerializeToString()
    before = cpu_seconds(server.process)
    with tempfile.NamedTemporaryFile() as body:
        body.write(struct.pack(">BI", 0, len(message)) + message)
        body.flush()
        output = subprocess.run(
            [
                "h2load",
                f"--duration={SECONDS}",
                f"--warm-up-time={WARM_UP_SECONDS}",
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
    rate = float(done[1])
    cpu = cpu_seconds(server.process) - before
    return rate, cpu / (rate * (SECONDS + WARM_UP_SECONDS))


def main():
    with harness.Server("--demo") as server, server.channel() as channel:
        print(
            "tokens  Forward/s  ModelInfer/s  ratio of bests  of medians"
            "  of CPU time"
        )
        for tokens in SIZES:
            forward, infer = requests(tokens)
            # h2load counts errors as answers: these are none, and are equal.
            output = harness.stub(channel).Forward(forward).output.data
            response = inference_harness.stub(channel).ModelInfer(infer)
            assert response.raw_output_contents[0] == output
            results = ([], [])
            for _ in range(ROUNDS):
                for result, method, request in (
                    (results[0], "moe.v1.MoeService/Forward", forward),
                    (
                        results[1],
                        "inference.GRPCInferenceService/ModelInfer",
                        infer,
                    ),
                ):
                    result.append(throughput(server, method, request))
            best = [max(rate for rate, _ in result) for result in results]
            median, cpu = (
                [statistics.median(one[i] for one in result) for result in results]
                for i in (0, 1)
            )
            print(
                f"{tokens:6} {best[0]:10.0f} {best[1]:13.0f}"
                f" {best[1] / best[0]:15.3f} {median[1] / median[0]:11.3f}"
                f" {cpu[0] / cpu[1]:12.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
