"""How the server starts, refuses to start, and ends."""

import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

import harness
import inference_harness
from harness import BIN, TIMEOUT_SECONDS, grpc, pb
from inference_harness import oip

SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"


class BadStartTest(unittest.TestCase):
    def assert_refused(self, flags, *fragments):
        """Exit code 2 and, the log aside, one line that has all fragments."""
        done = subprocess.run(
            [
                os.path.join(BIN, "moe-server"),
                "--listen_address=127.0.0.1:0",
                "--metrics_address=127.0.0.1:0",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(done.stdout, "")
        errors = [
            line
            for line in done.stderr.splitlines()
            if not re.match(r"I\d{4}-\d\d-\d\dT", line)
        ]
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertTrue(errors[0].startswith("error: "), errors[0])
        for fragment in fragments:
            self.assertIn(fragment, errors[0])

    def checkpoint(self, **changed_config):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        harness.write_checkpoint(folder.name, **changed_config)
        return folder.name

    def test_the_checkpoint_of_this_test_is_good(self):
        with harness.Server(f"--model=m={self.checkpoint()}") as server:
            with server.channel() as channel:
                model = harness.stub(channel).GetModel(
                    pb.GetModelRequest(model="m"), timeout=TIMEOUT_SECONDS
                )
            self.assertEqual(model.family, "olmoe")
            self.assertEqual(model.layers[0].num_experts, 3)

    def test_too_few_open_files(self):
        done = subprocess.run(
            [os.path.join(BIN, "moe-server"), "--demo"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_NOFILE, (8, 8)
            ),
        )
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(
            done.stderr,
            "error: limit of open files (ulimit -n): want at least 32, "
            "got 8\n",
        )

    def test_missing_folder(self):
        self.assert_refused(["--model=m=/no/such/folder"], "/no/such/folder")

    def test_folder_without_config(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assert_refused([f"--model=m={folder}"], "config.json")

    def test_damaged_config(self):
        folder = self.checkpoint()
        path = os.path.join(folder, "config.json")
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) // 2)
        self.assert_refused([f"--model=m={folder}"], "config.json")

    def test_config_that_does_not_match_the_tensors(self):
        for key, value, culprit in (
            ("hidden_size", 16, "mlp.gate.weight"),
            ("intermediate_size", 8, "gate_proj.weight"),
            ("num_experts", 4, "mlp.gate.weight"),
            ("num_experts", 2, "num_experts"),
            ("num_experts_per_tok", 4, "num_experts_per_tok"),
            ("num_hidden_layers", 2, "num_hidden_layers"),
        ):
            with self.subTest(key, value=value):
                folder = self.checkpoint(**{key: value})
                self.assert_refused([f"--model=m={folder}"], culprit)

    def test_truncated_weights(self):
        folder = self.checkpoint()
        path = os.path.join(folder, "model.safetensors")
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) - 1)
        self.assert_refused([f"--model=m={folder}"], "model.safetensors")

    def test_port_in_use(self):
        for flag in ("--listen_address", "--metrics_address"):
            with self.subTest(flag), socket.create_server(
                ("127.0.0.1", 0)
            ) as taken:
                address = f"127.0.0.1:{taken.getsockname()[1]}"
                self.assert_refused(["--demo", f"{flag}={address}"], address)

    def test_unknown_flag_and_bad_values(self):
        self.assert_refused(["--demo", "--no_such_flag"], "no_such_flag")
        self.assert_refused(
            ["--demo", "--weight_format=int7"], "weight_format", "int7"
        )
        self.assert_refused(
            ["--demo", "--expert_metrics=some"], "expert_metrics", "some"
        )
        self.assert_refused(
            ["--demo", "--listen_address=nonsense"], "listen_address"
        )
        self.assert_refused(["--model=m"], "--model")
        self.assert_refused([], "--model", "--demo")


class FaultTest(unittest.TestCase):
    def test_fatal_signals_name_themselves(self):
        for fatal in (
            signal.SIGSEGV,
            signal.SIGBUS,
            signal.SIGFPE,
            signal.SIGILL,
            signal.SIGABRT,
        ):
            with self.subTest(fatal.name), harness.Server("--demo") as server:
                server.process.send_signal(fatal)
                self.assertNotEqual(server.wait(), 0)
                self.assertIn(fatal.name, server.stderr())


class DrainTest(unittest.TestCase):
    def test_sigterm_answers_accepted_work_and_ends_with_0(self):
        with harness.Server("--demo") as server, server.channel() as channel:
            moe = harness.stub(channel)
            model = moe.GetModel(
                pb.GetModelRequest(model="demo"), timeout=TIMEOUT_SECONDS
            )
            layer = next(layer for layer in model.layers if not layer.dense)
            request = pb.ForwardRequest(
                model="demo",
                layer=layer.layer,
                hidden_states=harness.random_states(64, layer.d_model, 1),
            )
            expected = harness.untimed(
                moe.Forward(request, timeout=TIMEOUT_SECONDS)
            )
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(
                b"", timeout=TIMEOUT_SECONDS
            )
            self.assertEqual(next(watch), SERVING)

            # Senders without a pause: some requests are under way when the
            # signal comes, some come after it.
            enough = threading.Barrier(5)
            wrong, answered = [], []

            def send():
                first = True
                with server.channel() as own:
                    while True:
                        try:
                            answer = harness.stub(own).Forward(
                                request, timeout=TIMEOUT_SECONDS
                            )
                        except grpc.RpcError as error:
                            # Turned away by the server, in words.
                            if (
                                error.code() != grpc.StatusCode.UNAVAILABLE
                                or "draining" not in error.details()
                            ):
                                wrong.append(error)
                            return
                        answered.append(1)
                        if harness.untimed(answer) != expected:
                            wrong.append(answer)
                        if first:
                            enough.wait(TIMEOUT_SECONDS)
                            first = False

            senders = [threading.Thread(target=send) for _ in range(4)]
            for sender in senders:
                sender.start()
            enough.wait(TIMEOUT_SECONDS)
            server.terminate()
            self.assertEqual(next(watch), NOT_SERVING)
            for sender in senders:
                sender.join()
            self.assertEqual(wrong, [])
            self.assertGreaterEqual(len(answered), 4)
            self.assertEqual(server.wait(), 0, server.stderr())

    def test_sigterm_with_nothing_to_do(self):
        with harness.Server("--demo") as server:
            server.terminate()
            self.assertEqual(server.wait(), 0, server.stderr())


class UnreadLogTest(unittest.TestCase):
    """A log that goes into a pipe which nobody reads, or not at once."""

    def setUp(self):
        self.reader, self.writer = os.pipe()
        self.addCleanup(os.close, self.reader)

    def fill(self):
        """Until the pipe takes no byte more."""
        # Opened anew: O_NONBLOCK would hold for the server's end as well.
        with open(
            os.open(
                f"/proc/self/fd/{self.writer}", os.O_WRONLY | os.O_NONBLOCK
            ),
            "wb",
            buffering=0,
        ) as pipe:
            while pipe.write(b"\n" * 4096) or pipe.write(b"\n"):
                pass

    def test_requests_reloads_and_drain_go_on(self):
        self.addCleanup(os.close, self.writer)
        with harness.Server(
            "--demo", "--model_control", stderr=self.writer
        ) as server:
            self.fill()
            with server.channel() as channel:
                inference = inference_harness.stub(channel)
                for _ in range(10):  # each has something to say
                    inference.RepositoryModelLoad(
                        oip.RepositoryModelLoadRequest(model_name="demo"),
                        timeout=TIMEOUT_SECONDS,
                    )
                server.process.send_signal(signal.SIGHUP)
                moe = harness.stub(channel)
                model = moe.GetModel(
                    pb.GetModelRequest(model="demo"), timeout=TIMEOUT_SECONDS
                )
                answer = moe.Forward(
                    pb.ForwardRequest(
                        model="demo",
                        layer=model.layers[0].layer,
                        hidden_states=harness.random_states(
                            3, model.d_model, 1
                        ),
                    ),
                    timeout=TIMEOUT_SECONDS,
                )
                self.assertEqual(list(answer.output.shape), [3, model.d_model])
            server.terminate()
            self.assertEqual(server.wait(), 0)

    def test_late_reader_finds_all_of_it(self):
        self.fill()
        with harness.Server("--demo", stderr=self.writer) as server:
            os.close(self.writer)
            server.terminate()
            # Reads on while the server ends.
            with open(self.reader, closefd=False) as log:
                lines = [line for line in log if line != "\n"]
            self.assertEqual(server.wait(), 0)
        log = "".join(lines)
        self.assertIn("compute threads", log)
        self.assertRegex(log, " drained\n$")
        self.assertNotIn("lost", log)

    def test_bad_flag_ends_a_program(self):
        self.addCleanup(os.close, self.writer)
        self.fill()
        for program in "moe-server", "moe-client":
            done = subprocess.run(
                [os.path.join(BIN, program), "--no_such_flag=1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.writer,
                timeout=TIMEOUT_SECONDS,
            )
            self.assertEqual(done.returncode, 2, program)


class ThreadsTest(unittest.TestCase):
    def test_one_cpu_by_affinity_gives_one_compute_thread(self):
        allowed = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, {min(allowed)})
        with harness.Server("--demo") as server:
            self.assertEqual(server.metrics()["moe_compute_threads"], 1)
            self.assertIn("1 compute threads (affinity 1 CPUs", server.stderr())


if __name__ == "__main__":
    unittest.main()
