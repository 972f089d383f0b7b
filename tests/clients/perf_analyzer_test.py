"""Triton's load tester, which asks for metadata, configuration and statistics
by itself."""

import os
import subprocess
import unittest

import environment

import harness
from harness import TIMEOUT_SECONDS


class PerfAnalyzerTest(harness.DemoTest):
    @classmethod
    def setUpClass(cls):
        try:
            # Needs a newer C library than that of Debian 12.
            programs = environment.python_with("perf", "perf-analyzer>=2")
        except environment.Missing as missing:
            environment.say_skipped(missing)
            raise unittest.SkipTest(str(missing)) from missing
        cls.program = os.path.join(programs, "perf_analyzer")
        super().setUpClass()

    def measure(self, *flags):
        done = subprocess.run(
            [
                self.program,
                "-i",
                "grpc",
                "-u",
                self.server.grpc_address,
                "--request-count",
                "100",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"Throughput: [0-9.]+ infer/sec")
        return done.stdout

    def test_measures_without_being_told_anything(self):
        for layer in self.model.layers:
            output = self.measure(
                "-m", f"demo.layers.{layer.layer}", "-b", "4"
            )
            # What the server's statistics say.
            self.assertRegex(output, r"Inference count: [1-9]")

    def test_streams(self):
        self.measure(
            "-m", "demo.layers.0", "--streaming", "--concurrency-range", "4:4"
        )


if __name__ == "__main__":
    unittest.main()
