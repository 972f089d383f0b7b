"""Makes the pictures of deploy/images from a running system.

  tests/deploy/screenshots.sh

A server with two models under a mixed load, a Prometheus that scrapes it, and
headless Chromium that looks at the console pages after some minutes.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

import stack
from stack import DEPLOY, harness

import loads  # of tests/integration, found by stack

MINUTES = float(os.environ.get("MINUTES", "5"))


def write_model(folder, seed_scale):
    """A checkpoint of the family olmoe, with some experts that are liked more."""
    d_model, d_ff, num_experts, layers = 512, 256, 32, 4
    loads.write_model(folder, d_model, d_ff, num_experts, top_k=4)
    tensors = {}
    for layer in range(layers):
        mlp = f"model.layers.{layer}.mlp"
        gate = bytearray(loads.random_bf16([num_experts, d_model]).data)
        for expert in range(num_experts):
            # The upper byte of a bfloat16 holds the exponent: rows that are
            # twice as long win more often.
            if (expert * 7 + layer * seed_scale) % 11 < 2:
                first = 2 * expert * d_model + 1
                for i in range(first, first + 2 * d_model, 2):
                    gate[i] += 1
        tensors[f"{mlp}.gate.weight"] = harness.pb.Tensor(
            dtype=harness.pb.BF16, shape=[num_experts, d_model], data=bytes(gate)
        )
        for expert in range(num_experts):
            prefix = f"{mlp}.experts.{expert}"
            for name, shape in (
                ("gate_proj", [d_ff, d_model]),
                ("up_proj", [d_ff, d_model]),
                ("down_proj", [d_model, d_ff]),
            ):
                tensors[f"{prefix}.{name}.weight"] = loads.random_bf16(shape)
    harness.write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    config = os.path.join(folder, "config.json")
    with open(config) as file:
        text = file.read()
    with open(config, "w") as file:
        file.write(
            text.replace(
                '"num_hidden_layers": 1', f'"num_hidden_layers": {layers}'
            )
        )


def screenshot(url, path, width, height):
    with tempfile.TemporaryDirectory(prefix="moe-chromium-") as profile:
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--no-proxy-server",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                "--virtual-time-budget=8000",
                f"--screenshot={path}",
                url,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
    # Few colours: a palette makes the file a third as large.
    if shutil.which("pngquant"):
        subprocess.run(
            ["pngquant", "--force", "--output", path, "64", path], check=True
        )


def main():
    if not shutil.which("chromium"):
        sys.exit("no chromium; apt-get install chromium")
    images = os.path.join(DEPLOY, "images")
    os.makedirs(images, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="moe-models-") as models:
        for seed, name in enumerate(("olmoe-chat", "olmoe-code")):
            folder = os.path.join(models, name)
            os.mkdir(folder)
            write_model(folder, 3 + seed)
        with harness.Server(
            f"--model_repository={models}",
            "--weight_format=int8",
            "--max_queue_tokens=2048",
        ) as server, stack.Prometheus(
            {"moe-server": [server.metrics_address]}
        ) as prometheus:
            flags = [
                ("olmoe-chat", "--concurrency=4", "--tokens=1:9,64:1"),
                ("olmoe-code", "--rate=40", "--tokens=1-16", "--stream"),
                ("olmoe-chat", "--rate=2", "--tokens=256", "--dtype=bf16"),
            ]
            seconds = int(60 * MINUTES)
            running = [
                loads.start_load(
                    server, f"--model={model}", f"--duration={seconds}s", *more
                )
                for model, *more in flags
            ]
            mixed = stack.MixedLoad(server, "olmoe-code")
            time.sleep(seconds / 2)
            # For a while, more than the queue holds.
            loads.load(
                server,
                "--model=olmoe-code",
                "--concurrency=64",
                "--tokens=128",
                f"--duration={seconds / 8}s",
            )
            time.sleep(seconds * 3 / 8 - 10)
            minutes = max(1, round(MINUTES))
            query = f"job=moe-server&instance={server.metrics_address}"
            screenshot(
                f"{prometheus.url}/consoles/moe-server.html?{query}"
                f"&range={minutes}m&rate=15s",
                os.path.join(images, "console-server.png"),
                1320,
                2470,
            )
            screenshot(
                f"{prometheus.url}/consoles/moe.html?range={minutes}m",
                os.path.join(images, "console-all.png"),
                1320,
                640,
            )
            mixed.stop()
            for load in running:
                process, _ = load
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
