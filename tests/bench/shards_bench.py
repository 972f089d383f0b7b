"""What shards give and cost: expert throughput of two against one, a front with
many callers against one server, and what a front adds per token.

Usage: tests/bench/shards_bench.py [BIN_DIR] [SECONDS] [PART...]

Needs two cores. PART is scaling, callers or overhead; all without one. For
scaling and overhead each shard has a core, and the front works where they leave
room; for callers the one shard has a core, and front and callers the other.
"""

import contextlib
import json
import os
import statistics
import sys
import tempfile

# First: it says where the others are.
from bench_setup import seconds

import harness
import loads

SECONDS = seconds(default=5)

ROUNDS = 5
CORES = sorted(os.sched_getaffinity(0))[:2]
# d_model, d_ff, num_experts, top_k. Operations per byte on the wire grow with
# d_ff: the first has Mixtral's proportions, the second small experts.
WIDE = (2048, 7168, 8, 2)
NARROW = (2048, 2816, 8, 2)
TOKENS = 384
FLAGS = ["--num_compute_threads=1", "--measure_machine=false"]


class Cluster:
    """A front, and a shard on each of some cores.

    apart: the one shard is on the second core, and whoever is started from then
    on, the front first, on the other.
    """

    def __init__(self, stack, folder, name, shards, *flags, apart=False):
        count = WIDE[2] // shards
        cores = CORES[::-1] if apart else CORES
        file = os.path.join(folder, f"{name}.json")
        placement = []
        for s in range(shards):
            experts = f"{s * count}-{(s + 1) * count - 1}"
            os.sched_setaffinity(0, {cores[s]})
            shard = stack.enter_context(
                harness.Server(
                    f"--model=m={folder}",
                    *FLAGS,
                    f"--experts={experts}",
                    *flags,
                )
            )
            placement.append(
                {
                    "name": f"s{s}",
                    "targets": [f"ipv4:{shard.grpc_address}"],
                    "experts": [{"experts": experts}],
                }
            )
        with open(file, "w") as text:
            json.dump({"shards": placement}, text)
        os.sched_setaffinity(0, {CORES[0]} if apart else set(CORES))
        self.front = stack.enter_context(
            harness.Server(
                f"--model=m={folder}", *FLAGS, f"--shards={file}", *flags
            )
        )


def run(server, tokens, concurrency):
    return loads.load(
        server,
        "--model=m",
        f"--tokens={tokens}",
        f"--concurrency={concurrency}",
        "--warmup=0.5s",
        f"--duration={SECONDS}s",
    )


def scaling(name, folder):
    """By the time of one batch after the other: there are too few in a run for
    their number to tell."""
    with contextlib.ExitStack() as stack:
        one = Cluster(stack, folder, "one", 1, "--deterministic")
        two = Cluster(stack, folder, "two", 2, "--deterministic")
        ratios = []
        for _ in range(ROUNDS):
            # By turns, since the speed of a machine changes.
            slow, fast = (
                run(cluster.front, TOKENS, 1)["latency_seconds"]["p50"]
                for cluster in (one, two)
            )
            ratios.append(slow / fast)
            print(
                f"{name}, batches of {TOKENS}: one shard {TOKENS / slow:.0f}"
                f" tokens/s, two {TOKENS / fast:.0f}: {ratios[-1]:.2f} x",
                flush=True,
            )
        best = statistics.median(ratios)
        print(
            f"{name}, two shards of one core each: {best:.2f} x one, median of"
            f" {ROUNDS}; goal 1.80 {'reached' if best >= 1.8 else 'MISSED'}"
        )


def callers(name, folder):
    """Requests of 16 tokens from many callers: a front whose shard has a core
    of its own, against one server on such a core. The front keeps the shard
    busy while it gathers, adds up and sends, or it is slower."""
    with contextlib.ExitStack() as stack:
        os.sched_setaffinity(0, {CORES[1]})
        whole = stack.enter_context(
            harness.Server(f"--model=m={folder}", *FLAGS)
        )
        front = Cluster(stack, folder, "callers", 1, apart=True).front
        for concurrency in (8, 64):
            ratios = []
            for _ in range(ROUNDS):
                alone, through = (
                    run(server, 16, concurrency)["tokens_per_s"]
                    for server in (whole, front)
                )
                ratios.append(through / alone)
            print(
                f"{name}, {concurrency} callers: front {through:.0f} tokens/s,"
                f" one server {alone:.0f}: {statistics.median(ratios):.2f} x,"
                f" median of {ROUNDS}; goal 1.00",
                flush=True,
            )


def overhead(folder):
    print(f"{'tokens':>7} {'whole':>9} {'front':>9} {'added':>9} {'bytes':>9}")
    with contextlib.ExitStack() as stack:
        os.sched_setaffinity(0, {CORES[0]})
        whole = stack.enter_context(
            harness.Server(f"--model=m={folder}", *FLAGS)
        )
        cluster = Cluster(stack, folder, "cost", 1)
        for tokens in (1, 16, 256, 1024):
            added, times = [], []
            before = cluster.front.metrics()
            for _ in range(ROUNDS):
                alone = run(whole, tokens, 1)["latency_seconds"]["p50"]
                through = run(cluster.front, tokens, 1)["latency_seconds"][
                    "p50"
                ]
                times.append((alone, through))
                added.append(through - alone)
            after = cluster.front.metrics()
            bytes_moved = sum(
                after[name] - before[name]
                for name in after
                if name.startswith("moe_shard_bytes_total")
            )
            sent = after["moe_tokens_total"] - before["moe_tokens_total"]
            alone, through = map(statistics.median, zip(*times))
            print(
                f"{tokens:7} {1e3 * alone:6.2f} ms {1e3 * through:6.2f} ms"
                f" {1e6 * statistics.median(added) / tokens:6.1f} us"
                f" {bytes_moved / sent:9.0f}   (added, bytes: per token)",
                flush=True,
            )


if __name__ == "__main__":
    parts = sys.argv[3:] or ["scaling", "callers", "overhead"]
    for name, shape in (("wide", WIDE), ("narrow", NARROW)):
        with tempfile.TemporaryDirectory() as model:
            loads.write_model(model, *shape)
            if "scaling" in parts:
                scaling(name, model)
            if "callers" in parts:
                callers(name, model)
            if "overhead" in parts and shape == NARROW:
                overhead(model)
