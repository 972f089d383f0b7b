"""What moe-client writes, and what it makes of bad flags and bad servers."""

import os
import signal
import stat
import subprocess
import tempfile
import unittest
from concurrent import futures

import harness
from harness import BIN, TIMEOUT_SECONDS, grpc, moe_pb2_grpc, pb


def run(*arguments, program="moe-client", stdout=subprocess.PIPE):
    return subprocess.run(
        [os.path.join(BIN, program), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--demo")
        cls.addClassCleanup(cls.server.__exit__)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def client(self, *arguments, **options):
        return run(
            *arguments, f"--server={self.server.grpc_address}", **options
        )

    def assert_error(self, done, *fragments, code=2):
        """One line on stderr that has all fragments."""
        self.assertEqual(done.returncode, code, done)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        for fragment in fragments:
            self.assertIn(fragment, done.stderr)

    def test_output_replaces_a_file_and_nothing_else(self):
        old = self.path("old.safetensors")
        link = self.path("link.safetensors")
        os.symlink("old.safetensors", link)
        with open(old, "w") as file:
            file.write("old")
        done = self.client("forward", "--random=2", f"--output={link}")
        self.assertEqual(done.returncode, 0, done)
        self.assertTrue(os.path.islink(link))
        tensors = harness.read_safetensors(old)
        self.assertEqual(tensors["output"][1][0], 2)
        self.assertEqual(len(os.listdir(self.folder)), 2)

        full = self.path("full")
        os.symlink("/dev/full", full)  # not the machine's own: it is root
        done = self.client("forward", f"--output={full}")
        self.assert_error(done, "--output", full, "No space left on device")
        self.assertTrue(os.path.islink(full))
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))

    def test_output_goes_into_a_pipe(self):
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        self.addCleanup(reader.kill)
        done = self.client("forward", f"--output={pipe}")
        self.assertEqual(done.returncode, 0, done)
        data, _ = reader.communicate(timeout=TIMEOUT_SECONDS)
        self.assertIn(b'"output"', data)
        self.assertEqual(os.listdir(self.folder), ["pipe"])

    def test_stdout_that_cannot_be_written_is_an_error(self):
        harness.write_checkpoint(self.folder)
        server = f"--server={self.server.grpc_address}"
        for program, *arguments in (
            ("moe-client", "info", server),
            ("moe-client", "forward", server),
            ("moe-client", "health", server),
            ("moe-client", "load", "--requests=5", "--warmup=0s", server),
            ("moe-client", "--help"),
            ("moe-inspect", self.folder),
            ("moe-bench", "--version"),
            (
                "moe-server",
                "--demo",
                "--listen_address=127.0.0.1:0",
                "--metrics_address=",
            ),
        ):
            with self.subTest([program, *arguments]):
                with open("/dev/full", "w") as full:
                    done = run(*arguments, program=program, stdout=full)
                self.assertEqual(done.returncode, 2, done)
                last = done.stderr.splitlines()[-1]
                self.assertEqual(
                    last, "error: stdout: can't write: No space left on device"
                )

    def test_closed_stdout_is_an_error(self):
        done = run(
            "-c",
            'exec "$0" "$@" >&-',
            os.path.join(BIN, "moe-client"),
            "info",
            f"--server={self.server.grpc_address}",
            program="/bin/sh",
        )
        self.assert_error(done, "stdout: can't write: Bad file descriptor")

    def test_reader_that_has_gone_ends_it_without_a_word(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        done = self.client("info", stdout=writer)
        self.assertEqual(done.returncode, -signal.SIGPIPE)
        self.assertEqual(done.stderr, "")

    def test_endless_flag_file_is_refused(self):
        self.assert_error(
            run("--flagfile=/dev/zero"), "--flagfile: want a file of at most"
        )

    def test_token_counts_without_bound_are_refused(self):
        for tokens in (2**63 - 1, 2**40, 8193, -1):
            self.assert_error(
                self.client("forward", f"--random={tokens}"), "--random: want"
            )
        self.assert_error(
            self.client("load", f"--tokens={2**62}"), "--tokens: want"
        )

    def test_durations_must_be_finite_and_positive(self):
        for flag in "timeout", "duration", "warmup", "window":
            for value in "-1s", "inf", "-inf":
                self.assert_error(
                    self.client("load", f"--{flag}={value}"),
                    f"--{flag}: want",
                    f"got {value}",
                )
        self.assert_error(self.client("info", "--timeout=0"), "--timeout: want")

    def test_load_without_a_success_is_no_success(self):
        done = self.client(
            "load", "--layers=77", "--requests=3", "--warmup=0s"
        )
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("no request succeeded", done.stdout)
        self.assertIn("NOT_FOUND", done.stdout)


class HostileServer(moe_pb2_grpc.MoeServiceServicer):
    """Answers with what a test sets."""

    model = pb.ModelInfo()
    response = pb.ForwardResponse()

    def GetModel(self, request, context):
        return self.model

    def Forward(self, request, context):
        return self.response

    def ForwardStream(self, requests, context):
        for request in requests:
            for _ in range(3):
                yield pb.ForwardStreamResponse(request_id=request.request_id)


class HostileServerTest(unittest.TestCase):
    def setUp(self):
        self.hostile = HostileServer()
        server = grpc.server(futures.ThreadPoolExecutor(8))
        moe_pb2_grpc.add_MoeServiceServicer_to_server(self.hostile, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(server.stop, None)
        self.server = f"--server=127.0.0.1:{port}"
        self.hostile.model = pb.ModelInfo(
            name="demo",
            d_model=4,
            max_request_tokens=100,
            layers=[pb.LayerInfo(d_model=4)],
        )

    def assert_internal(self, done, fragment):
        self.assertEqual(done.returncode, 2, done)
        self.assertRegex(done.stderr, r"^error: INTERNAL: .*\n$")
        self.assertIn(fragment, done.stderr)

    def test_shapes_that_no_tensor_has(self):
        for rows, columns in (
            (4, 2**60 + 1),  # times 4 bytes is 16 in 64 bits
            (2**62, 4),
            (2**32, 2**32),
            (-1, -4),
            (2, 3),
        ):
            self.hostile.response = pb.ForwardResponse(
                output=pb.Tensor(
                    dtype=pb.F32, shape=[rows, columns], data=bytes(16)
                )
            )
            self.assert_internal(
                run("forward", self.server), "response tensor: want"
            )

    def test_routing_that_contradicts_itself(self):
        self.hostile.response = pb.ForwardResponse(
            output=harness.random_states(1, 4, 1),
            expert_ids=harness.tensor([1] * 1000, [1, 1000]),
            routing_weights=harness.tensor([], [0, 0]),
        )
        self.assert_internal(
            run("forward", self.server), "response routing_weights: want"
        )

    def test_models_that_no_client_can_serve(self):
        for d_model in 2**40, 2**63 - 1, 0, -1:
            self.hostile.model.d_model = d_model
            for command in "forward", "load":
                self.assert_internal(
                    run(command, self.server), "response d_model: want"
                )
        self.hostile.model.d_model = 2**20
        self.hostile.model.max_request_tokens = 2**63 - 1
        self.assertEqual(
            run("forward", "--random=600", self.server).returncode, 2
        )
        del self.hostile.model.layers[:]
        self.assert_internal(
            run("load", self.server), "response layers: want some"
        )

    def test_outputs_that_are_no_reference(self):
        self.hostile.response = pb.ForwardResponse()
        self.assert_internal(
            run("load", "--check", self.server), "response output: want"
        )

    def test_more_responses_than_requests(self):
        done = run(
            "load",
            "--stream",
            "--duration=300ms",
            "--warmup=0s",
            self.server,
        )
        self.assertIn(done.returncode, (0, 1), done)


if __name__ == "__main__":
    unittest.main()
