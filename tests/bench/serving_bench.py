"""What serving costs on top of the engine: three figures and their goals.

Usage: tests/bench/serving_bench.py [BIN_DIR] [SECONDS] [PART...]

Needs two cores: the server has one, its clients the other. PART is throughput,
batching or idle; all without one. Beside idle calls stands what an empty one
takes at the same pace, with the same cores and library: no server can be below.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

# First: it says where the others are.
from bench_setup import BIN, seconds

import harness
import loads

SECONDS = seconds(default=10)

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


def counts(server):
    """Sums so far, in seconds but for the last two."""
    page = server.metrics()
    stage = "moe_stage_duration_seconds_sum"
    return {
        "experts": page[stage + '{stage="experts"}'],
        "engine": sum(v for k, v in page.items() if k.startswith(stage)),
        "queue": page["moe_queue_wait_seconds_sum"],
        "calls": page['moe_request_duration_seconds_sum{method="Forward"}'],
        "batches": page["moe_batch_tokens_count"],
        "tokens": page["moe_batch_tokens_sum"],
    }


def run(server, clients):
    """The load's result, and what the server counted meanwhile."""
    flags = [
        "--model=m",
        "--tokens=1",
        f"--concurrency={clients}",
        f"--connections={clients}",
    ]
    loads.load(server, *flags, "--duration=1s")
    before = counts(server)
    done = loads.load(
        server, *flags, f"--duration={SECONDS}s", "--warmup=0s"
    )
    assert done["errors"] == {}, done
    after = counts(server)
    return done, {name: after[name] - before[name] for name in after}


def how_busy(done, counted):
    return (
        f"batches of {counted['tokens'] / counted['batches']:.1f}, engine busy"
        f" {100 * counted['engine'] / done['seconds']:.1f} % (experts"
        f" {100 * counted['experts'] / done['seconds']:.1f} %)"
    )


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
                    done, counted = run(server, clients=64)
                    batch = round(counted["tokens"] / counted["batches"])
                    alone = bench(weight_format, batch)
                    on_core(CLIENT_CORE)
                    ratios.append(done["tokens_per_s"] / alone)
                    print(
                        f"OLMoE layer, {weight_format}, 64 clients of 1 token:"
                        f" {done['tokens_per_s']:.0f} tokens/s,"
                        f" {how_busy(done, counted)}; moe-bench at {batch}"
                        f" tokens: {alone:.0f} tokens/s;"
                        f" ratio {ratios[-1]:.3f}",
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
            flag = f"--weight_format={weight_format}"
            ratios = []
            with serve(folder, flag) as batched, serve(
                folder, flag, "--max_batch_tokens=1"
            ) as single:
                for _ in range(ROUNDS):
                    rates = []
                    for name, server in (("on", batched), ("off", single)):
                        done, counted = run(server, clients=64)
                        rates.append(done["tokens_per_s"])
                        print(
                            f"small experts, {weight_format}, batching {name}:"
                            f" {rates[-1]:.0f} tokens/s,"
                            f" {how_busy(done, counted)}",
                            flush=True,
                        )
                    ratios.append(rates[0] / rates[1])
            ratio = statistics.median(ratios)
            print(
                f"median ratio {ratio:.2f}, goal 5: {verdict(ratio >= 5)}",
                flush=True,
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
                done, counted = run(server, clients=1)
                # What no server could do without: the same, doing nothing.
                empty = subprocess.run(
                    [
                        os.path.join(BIN, "empty_call_bench"),
                        server.grpc_address,
                        str(done["compute_seconds"]["p50"]),
                        str(SECONDS),
                    ],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout.strip()
        # By what each answer says, since how long a token takes depends on its
        # experts: p50 of a difference is not the difference of p50s.
        p50 = {
            what: 1e6 * done[f"{what}_seconds"]["p50"]
            for what in ("latency", "beyond_compute", "queue", "overhead")
        }
        print(
            f"{name}, idle, 1 token: p50 {p50['latency']:.0f} us, beyond"
            f" compute {p50['beyond_compute']:.0f} us (queue"
            f" {p50['queue']:.0f}, overhead {p50['overhead']:.0f}), goal 250:"
            f" {verdict(p50['beyond_compute'] <= 250)}",
            flush=True,
        )
        mean = 1e6 / done["requests_per_s"]
        engine, queue, calls = (
            1e6 * counted[what] / counted["batches"]
            for what in ("engine", "queue", "calls")
        )
        print(
            f"  means: {mean:.0f} us, engine {engine:.0f} us;"
            f" {mean - engine:.0f} us more (until the engine has it"
            f" {queue:.0f}, rest of the call {calls - queue - engine:.0f},"
            f" gRPC and the way {mean - calls:.0f});"
            f" an empty call at that pace: p50 {empty} us",
            flush=True,
        )


if __name__ == "__main__":
    PARTS = {"throughput": throughput, "batching": batching, "idle": idle}
    print(f"server on core {SERVER_CORE}, clients on core {CLIENT_CORE}")
    for part in sys.argv[3:] or PARTS:
        PARTS[part]()
