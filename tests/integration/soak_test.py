"""Every answer right, and no memory lost, for as long as you like."""

import unittest

import harness
from loads import FULL, Memory, load, milliseconds, say


class SoakTest(harness.DemoTest):
    def soak(self, *flags):
        # Warm-up: buffers and allocator arenas grow to the load.
        common = [
            "--tokens=0-8:8,9-64:2,300:0.1",
            "--dtype=f32,bf16,f16",
            "--concurrency=32",
            "--connections=8",
            "--duration=7200s",
            "--check",
            *flags,
        ]
        load(self.server, *common, f"--requests={20_000 if FULL else 500}")
        memory = Memory(self.server.process.pid)
        done = load(
            self.server, *common, f"--requests={200_000 if FULL else 2_000}"
        )
        memory.stop()
        say(
            f"{done['requests']} requests in {done['seconds']:.0f} s,"
            f" {done['wrong']} wrong, {done['inexact']} not the same bytes,"
            f" {milliseconds(done['latency_seconds'])}"
        )
        largest = memory.report()
        self.assertEqual(done["errors"], {})
        self.assertEqual(done["wrong"], 0)
        self.assertEqual(done["inexact"], 0)
        if FULL:
            half = len(memory.samples) // 2
            middle = max(b for _, b in memory.samples[:half])
            self.assertLess(largest, 1.05 * middle + 8e6)

    def test_calls(self):
        self.soak()

    def test_streams(self):
        self.soak("--stream")


if __name__ == "__main__":
    unittest.main()
