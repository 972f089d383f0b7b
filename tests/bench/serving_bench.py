"""What serving costs on top of the engine: three figures and their goals.

Usage: tests/bench/serving_bench.py [BIN_DIR] [SECONDS]

Needs two cores: the server has one, its clients the other.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
BIN = os.path.abspath(
    sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/build/release/bin"
)
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 10
os.environ.setdefault("MOE_BIN_DIR", BIN)
os.environ.setdefault("MOE_PROTO_DIR", f"{ROOT}/proto")
os.environ.setdefault("MOE_PROTOC", "/usr/bin/protoc")
os.environ.setdefault("MOE_GRPC_PYTHON_PLUGIN", "/usr/bin/grpc_python_plugin")
sys.path.insert(0, f"{ROOT}/tests/integration")

import harness  # noqa: E402
import loads  # noqa: E402

ROUNDS = 5
SERVER_CORE, CLIENT_CORE = sorted(os.sched_getaffinity(0))[:2]

# d_model, d_ff, num_experts, top_k
OLMOE = (2048, 1024, 64, 8)
SMALL = (1024, 512, 32, 8)  # as granite-3.0-1b-a400m
TINY = (256, 128, 8, 2)


def on_core(core):
    """Where this process and those that it starts run from now on."""
    os.sched_setaffinity(0, {core})


def serve(folder, *flags):
    on_core(SERVER_CORE)
    server = harness.Server(
        f"--model=m={folder}", "--num_compute_threads=1", *flags
    )
    on_core(CLIENT_CORE)
    return server


def engine_counts(server):
    """Seconds in the experts and in all stages; batches, tokens in them."""
    page = server.metrics()
    stages = {
        name: value
        for name, value in page.items()
        if name.startswith("moe_stage_duration_seconds_sum")
    }
    return (
        stages['moe_stage_duration_seconds_sum{stage="experts"}'],
        sum(stages.values()),
        page["moe_batch_tokens_count"],
        page["moe_batch_tokens_sum"],
    )


def run(server, clients):
    """The load's result, seconds of the engine and tokens per batch, and a
    text on how busy the engine was."""
    flags = [
        "--model=m",
        "--tokens=1",
        f"--concurrency={clients}",
        f"--connections={clients}",
    ]
    loads.load(server, *flags, "--duration=1s")
    before = engine_counts(server)
    done = loads.load(
        server, *flags, f"--duration={SECONDS}s", "--warmup=0s"
    )
    assert done["errors"] == {}, done
    experts, seconds, batches, tokens = (
        b - a for a, b in zip(before, engine_counts(server))
    )
    busy = (
        f"batches of {tokens / batches:.1f}, engine busy"
        f" {100 * seconds / done['seconds']:.1f} % (experts"
        f" {100 * experts / done['seconds']:.1f} %)"
    )
    return done, seconds / batches, tokens / batches, busy


def bench(weight_format, tokens):
    """Tokens per second of the engine alone."""
    on_core(SERVER_CORE)
    d_model, d_ff, num_experts, top_k = OLMOE
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        subprocess.run(
            [
                os.path.join(BIN, "moe-bench"),
                f"--d_model={d_model}",
                f"--d_ff={d_ff}",
                f"--num_experts={num_experts}",
                f"--top_k={top_k}",
                f"--weight_formats={weight_format}",
                f"--tokens={tokens}",
                "--num_compute_threads=1",
                f"--cell_time={SECONDS / 2}s",
                f"--json={result.name}",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        cell = json.load(result)["cells"][0]
    return cell["tokens"] / cell["seconds"]


def verdict(good):
    return "reached" if good else "MISSED"


def throughput():
    with tempfile.TemporaryDirectory() as folder:
        loads.write_model(folder, *OLMOE)
        for weight_format in ("bf16", "int8"):
            ratios = []
            with serve(folder, f"--weight_format={weight_format}") as server:
                # By turns, since the speed of a machine changes. The server
                # holds its weights and does nothing while moe-bench runs.
                for _ in range(ROUNDS):
                    done, _, batch, busy = run(server, clients=64)
                    alone = bench(weight_format, round(batch))
                    on_core(CLIENT_CORE)
                    ratios.append(done["tokens_per_s"] / alone)
                    print(
                        f"OLMoE layer, {weight_format}, 64 clients of 1 token:"
                        f" {done['tokens_per_s']:.0f} tokens/s, {busy};"
                        f" moe-bench at {round(batch)} tokens: {alone:.0f}"
                        f" tokens/s; ratio {ratios[-1]:.3f}",
                        flush=True,
                    )
            ratio = statistics.median(ratios)
            print(
                f"median ratio {ratio:.3f}, goal 0.85:"
                f" {verdict(ratio >= 0.85)}",
                flush=True,
            )


def batching():
    with tempfile.TemporaryDirectory() as folder:
        loads.write_model(folder, *SMALL)
        for weight_format in ("f32", "bf16"):
            rates = []
            for limit in ([], ["--max_batch_tokens=1"]):
                with serve(
                    folder, f"--weight_format={weight_format}", *limit
                ) as server:
                    done, _, _, busy = run(server, clients=64)
                rates.append(done["tokens_per_s"])
                print(
                    f"small experts, {weight_format} {limit}:"
                    f" {rates[-1]:.0f} tokens/s, {busy}"
                )
            ratio = rates[0] / rates[1]
            print(
                f"ratio {ratio:.2f}, goal 5: {verdict(ratio >= 5)}", flush=True
            )


def idle():
    for name, shape in (
        ("OLMoE layer", OLMOE),
        ("small experts", SMALL),
        ("tiny experts", TINY),
    ):
        with tempfile.TemporaryDirectory() as folder:
            loads.write_model(folder, *shape)
            with serve(folder) as server:
                done, seconds, _, _ = run(server, clients=1)
        # Means: how long a token takes depends on its experts, and p50 of a
        # difference is not the difference of p50s.
        mean = 1 / done["requests_per_s"]
        more = 1e6 * (mean - seconds)
        print(
            f"{name}, idle, 1 token: mean {1e6 * mean:.0f} us,"
            f" p50 {1e6 * done['latency_seconds']['p50']:.0f} us, engine's"
            f" mean {1e6 * seconds:.0f} us; {more:.0f} us more, goal 250:"
            f" {verdict(more <= 250)}",
            flush=True,
        )


if __name__ == "__main__":
    print(f"server on core {SERVER_CORE}, clients on core {CLIENT_CORE}")
    throughput()
    batching()
    idle()
