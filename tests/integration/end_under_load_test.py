"""Servers that end, politely or not, while they are busy."""

import os
import random
import tempfile
import threading
import time
import unittest

import harness
from harness import TIMEOUT_SECONDS, grpc
from loads import FULL, finish_load, say, start_load


class EndUnderLoadTest(unittest.TestCase):
    def test_sigterm_loses_nothing(self):
        moments = random.Random(1)
        for round_number in range(20 if FULL else 3):
            with self.subTest(round_number):
                self.end_one(moments.uniform(0.05, 0.5))

    def end_one(self, seconds):
        with harness.Server("--demo", "--drain_timeout=20s") as server:
            request = harness.pb.ForwardRequest(
                model="demo", hidden_states=harness.random_states(40, 256, 1)
            )
            with server.channel() as channel:
                expected = harness.untimed(
                    harness.stub(channel).Forward(
                        request, timeout=TIMEOUT_SECONDS
                    )
                )
            answered, lost = [0], []

            def send(channel):
                with channel:
                    while True:
                        try:
                            answer = harness.stub(channel).Forward(
                                request, timeout=TIMEOUT_SECONDS
                            )
                        except grpc.RpcError as error:
                            # Told to go elsewhere, by the server itself.
                            if (
                                error.code() != grpc.StatusCode.UNAVAILABLE
                                or "draining" not in error.details()
                            ):
                                lost.append(error)
                            return
                        answered[0] += 1
                        if harness.untimed(answer) != expected:
                            lost.append(answer)

            senders = [
                threading.Thread(target=send, args=(server.channel(),))
                for _ in range(8)
            ]
            for sender in senders:
                sender.start()
            time.sleep(seconds)
            began = time.monotonic()
            server.terminate()
            code = server.wait()
            took = time.monotonic() - began
            for sender in senders:
                sender.join()
            say(f"{answered[0]} answers, then ended in {took:.2f} s")
            self.assertEqual(lost, [])
            self.assertEqual(code, 0, server.stderr())

    def test_sigkill_and_restart_give_no_wrong_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            address = "unix:" + os.path.join(folder, "socket")
            flags = ["--demo", f"--listen_address={address}"]
            server = harness.Server(*flags)
            load = start_load(
                server,
                "--tokens=1-32",
                "--check",
                "--warmup=0s",
                f"--duration={20 if FULL else 6}s",
                address=address,
            )
            for _ in range(5 if FULL else 1):
                time.sleep(2)
                with server:
                    server.process.kill()
                server = harness.Server(*flags)
            with server:
                done = finish_load(load)
            say(f"{done['requests']} requests, {done['errors']}")
            self.assertEqual(done["wrong"], 0)
            # Gone, or back and still loading.
            self.assertLessEqual(
                set(done["errors"]), {"UNAVAILABLE", "FAILED_PRECONDITION"}
            )
            self.assertGreater(
                done["requests"], sum(done["errors"].values())
            )


if __name__ == "__main__":
    unittest.main()
