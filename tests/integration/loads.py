"""Servers under load: what the load tests share.

By default each test is short. With MOE_FULL=1 in the environment it runs as
long as its figures need:

  MOE_FULL=1 ctest --preset release -V -R 'integration.(overload|soak|misuse|end_under_load|reload|shards)'
"""

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time

import harness
from harness import BIN

FULL = os.environ.get("MOE_FULL") == "1"


def say(*words):
    """A figure for the reader of the test's output."""
    print("   ", *words, flush=True)


def cores_apart():
    """CPUs for a server, and others for its callers, lest a figure of the one
    be one of the other; the same for both if there is only one."""
    cpus = sorted(os.sched_getaffinity(0))
    return set(cpus[:1]), set(cpus[1:] or cpus)


@contextlib.contextmanager
def on_cores(cpus):
    """Where what is started meanwhile runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def start_load(server, *flags, address=None):
    """moe-client load in the background; finish_load takes the result."""
    result = tempfile.NamedTemporaryFile(suffix=".json")
    process = subprocess.Popen(
        harness.die_with_parent(
            [
                os.path.join(BIN, "moe-client"),
                "load",
                f"--server={address or server.grpc_address}",
                f"--json={result.name}",
                *flags,
            ]
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process, result


def finish_load(load):
    """What --json holds, as a dictionary, with the exit code."""
    process, result = load
    with result:
        output, _ = process.communicate(timeout=7200)
        # By name: a file that is there is replaced, not written over.
        with open(result.name, encoding="utf-8") as file:
            text = file.read()
    if not text:
        raise AssertionError(f"moe-client load: {output}")
    return {**json.loads(text), "exit": process.returncode}


def load(server, *flags):
    return finish_load(start_load(server, *flags))


def milliseconds(latency):
    return ", ".join(f"{k} {1e3 * v:.2f} ms" for k, v in latency.items())


class Memory(threading.Thread):
    """Samples the resident memory of a process, in bytes."""

    def __init__(self, pid, period_seconds=0.2):
        super().__init__(daemon=True)
        self.pid, self.period = pid, period_seconds
        self.samples = []  # (seconds, bytes)
        self._end = threading.Event()
        self.start()

    def run(self):
        over = False
        while not over:
            over = self._end.wait(self.period if self.samples else 0)
            try:
                with open(f"/proc/{self.pid}/status") as status:
                    for line in status:
                        if line.startswith("VmRSS:"):
                            self.samples.append(
                                (time.monotonic(), int(line.split()[1]) * 1024)
                            )
            except FileNotFoundError:
                return

    def stop(self):
        self._end.set()
        self.join()

    def slope(self):
        """Bytes per second over the second half, by least squares."""
        half = self.samples[len(self.samples) // 2 :]
        if len(half) < 2:
            return 0.0
        mean_t = sum(t for t, _ in half) / len(half)
        mean_b = sum(b for _, b in half) / len(half)
        spread = sum((t - mean_t) ** 2 for t, _ in half)
        return sum((t - mean_t) * (b - mean_b) for t, b in half) / spread

    def report(self):
        largest = max(b for _, b in self.samples)
        say(
            f"resident memory: at most {largest / 1e6:.0f} MB,"
            f" slope {60 * self.slope() / 1e6:+.2f} MB a minute"
        )
        return largest


class Throughput(threading.Thread):
    """Samples how many tokens a server has computed."""

    def __init__(self, server, period_seconds=0.05):
        super().__init__(daemon=True)
        self.server, self.period = server, period_seconds
        self.samples = []  # (seconds, tokens)
        self._end = threading.Event()
        self.start()

    def run(self):
        while not self._end.wait(self.period):
            before = time.monotonic()
            tokens = self.server.metrics()["moe_tokens_total"]
            self.samples.append(((before + time.monotonic()) / 2, tokens))

    def stop(self):
        self._end.set()
        self.join()

    def longest(self, tokens):
        """Seconds that the slowest `tokens` in a row took."""
        longest, end = 0.0, 0
        for start, count in self.samples:
            while self.samples[end][1] < count + tokens:
                end += 1
                if end == len(self.samples):
                    return longest
            (t0, n0), (t1, n1) = self.samples[end - 1 : end + 1]
            share = (count + tokens - n0) / (n1 - n0)
            longest = max(longest, t0 + share * (t1 - t0) - start)
        return longest


def random_bf16(shape):
    """A BF16 tensor of numbers of about 0.01, either sign."""
    count = 1
    for extent in shape:
        count *= extent
    data = bytearray(2 * count)
    data[0::2] = os.urandom(count)
    data[1::2] = os.urandom(count).translate(bytes([0x3C, 0xBC] * 128))
    return harness.pb.Tensor(
        dtype=harness.pb.BF16, shape=shape, data=bytes(data)
    )


def write_model(folder, d_model, d_ff, num_experts, top_k):
    """A one-layer checkpoint of the family olmoe with random weights."""
    config = {
        **harness.CHECKPOINT,
        "hidden_size": d_model,
        "intermediate_size": d_ff,
        "num_experts": num_experts,
        "num_experts_per_tok": top_k,
        "torch_dtype": "bfloat16",
    }
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    mlp = "model.layers.0.mlp"
    tensors = {f"{mlp}.gate.weight": random_bf16([num_experts, d_model])}
    for expert in range(num_experts):
        prefix = f"{mlp}.experts.{expert}"
        tensors[f"{prefix}.gate_proj.weight"] = random_bf16([d_ff, d_model])
        tensors[f"{prefix}.up_proj.weight"] = random_bf16([d_ff, d_model])
        tensors[f"{prefix}.down_proj.weight"] = random_bf16([d_model, d_ff])
    harness.write_safetensors(
        os.path.join(folder, "model.safetensors"), tensors
    )
