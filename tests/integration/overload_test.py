"""More requests than the server can answer, and callers that do not wait."""

import random
import tempfile
import threading
import time
import unittest

import harness
from harness import TIMEOUT_SECONDS, grpc
from loads import (
    FULL,
    Memory,
    Throughput,
    cores_apart,
    load,
    milliseconds,
    on_cores,
    say,
    write_model,
)


class OverloadTest(unittest.TestCase):
    def test_three_times_the_capacity(self):
        # Much arithmetic per byte, so that the experts are what is short, not
        # the network; and a queue of about half a second.
        with tempfile.TemporaryDirectory() as folder:
            write_model(folder, d_model=128, d_ff=2048, num_experts=8, top_k=8)
            self.overload(
                folder,
                seconds=60 if FULL else 4,
            )

    def overload(self, folder, seconds):
        tokens, max_batch_tokens = 16, 128
        # A sanitizer's build, too, fills it within seconds unless in full.
        max_queue_tokens = 4096 if FULL else 1024
        server_cores, load_cores = cores_apart()
        with on_cores(server_cores):
            started = harness.Server(
                f"--model=m={folder}",
                f"--max_queue_tokens={max_queue_tokens}",
                f"--max_batch_tokens={max_batch_tokens}",
                "--num_compute_threads=1",
            )
        with started as server, on_cores(load_cores):
            common = ["--model=m", f"--tokens={tokens}", "--connections=8"]
            calm = load(
                server,
                *common,
                "--concurrency=32",
                f"--duration={min(seconds, 10)}s",
            )
            self.assertEqual(calm["errors"], {})
            capacity = calm["requests_per_s"]
            say(f"capacity: {capacity:.0f} requests of {tokens} tokens a second")

            memory = Memory(server.process.pid)
            throughput = Throughput(server)
            over = load(
                server,
                *common,
                f"--rate={3 * capacity}",
                f"--duration={seconds}s",
            )
            throughput.stop()
            memory.stop()
            accepted = over["requests"] - sum(over["errors"].values())
            # Who is admitted last waits for the batch that runs and for all
            # that fills the queue, itself included. How long that takes is
            # measured, as is the wait: of a hundred requests, some wait while
            # the machine is slower than on the mean.
            full = max_queue_tokens + max_batch_tokens
            bound = throughput.longest(full)
            say(f"at 3 times that: {accepted} answered, {over['errors']}")
            say("answered:", milliseconds(over["latency_seconds"]))
            say(
                f"a full queue and a batch take"
                f" {1e3 * full / over['tokens_per_s']:.0f} ms at the mean rate,"
                f" {1e3 * bound:.0f} ms at the lowest"
            )
            say("refused:", milliseconds(over["error_latency_seconds"]))
            memory.report()
            after = load(
                server,
                *common,
                "--concurrency=32",
                "--warmup=0s",
                "--duration=1s",
                "--check",
            )
            say(
                "the second after it:",
                f"{after['requests_per_s']:.0f} requests/s,",
                milliseconds(after["latency_seconds"]),
            )
        self.assertEqual(set(over["errors"]), {"RESOURCE_EXHAUSTED"})
        self.assertGreater(accepted, 0)
        self.assertEqual(after["errors"], {})
        self.assertEqual(after["wrong"], 0)
        if FULL:  # holds on a machine that does nothing else
            self.assertLess(over["latency_seconds"]["p99"], bound)
            self.assertLess(over["error_latency_seconds"]["p99"], 0.005)
            self.assertLess(60 * memory.slope(), 2e6)
            self.assertGreater(after["requests_per_s"], 0.8 * capacity)


class LateTest(harness.DemoTest):
    """Callers that do not wait for their answers."""

    def counted(self, reason):
        return self.server.metrics()[
            f'moe_rejected_requests_total{{reason="{reason}"}}'
        ]

    def in_flight(self):
        return self.server.metrics()["moe_requests_in_flight"]

    def assert_right_again(self, expected):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.in_flight() > 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.in_flight(), 0)
        self.assertEqual(self.forward(self.request(seed=5)), expected)

    def test_deadlines_of_a_millisecond(self):
        expected = self.forward(self.request(seed=5))
        memory = Memory(self.server.process.pid)
        requests = [self.request(tokens=64, seed=seed) for seed in range(8)]
        codes = {}
        calls = []
        for index in range(5000 if FULL else 500):
            calls.append(
                self.moe.Forward.future(requests[index % 8], timeout=0.001)
            )
            if len(calls) == 100:
                for call in calls:
                    code = call.code().name
                    codes[code] = codes.get(code, 0) + 1
                calls = []
        memory.stop()
        say(f"deadline 1 ms: {codes}")
        say(f"never computed for that: {self.counted('expired'):.0f}")
        memory.report()
        self.assertLessEqual(set(codes), {"OK", "DEADLINE_EXCEEDED"})
        self.assertIn("DEADLINE_EXCEEDED", codes)
        self.assert_right_again(expected)

    def test_cancels_at_random_moments(self):
        expected = self.forward(self.request(seed=5))
        pause = random.Random(1)
        request = self.request(tokens=64)
        calls = []
        for _ in range(5000 if FULL else 500):
            call = self.moe.Forward.future(request, timeout=TIMEOUT_SECONDS)
            timer = threading.Timer(pause.uniform(0, 0.01), call.cancel)
            timer.start()
            calls.append((call, timer))
            if len(calls) == 50:
                for made, timer in calls:
                    timer.join()
                    self.assertIn(
                        made.code(),
                        (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED),
                    )
                calls = []
        say(f"cancelled and not computed: {self.counted('cancelled'):.0f}")
        self.assert_right_again(expected)

    def test_streams_that_are_dropped(self):
        expected = self.forward(self.request(seed=5))
        for index in range(200):
            calls = self.moe.ForwardStream(
                iter([self.request(tokens=8)] * 40), timeout=TIMEOUT_SECONDS
            )
            for _ in range(index % 4):
                self.assertEqual(next(calls).code, 0)
            calls.cancel()
        self.assert_right_again(expected)


if __name__ == "__main__":
    unittest.main()
