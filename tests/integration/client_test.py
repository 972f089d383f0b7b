"""What moe-client writes, and what it makes of bad flags and bad servers."""

import os
import signal
import stat
import subprocess
import tempfile
import unittest

import harness
from harness import BIN, TIMEOUT_SECONDS


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


if __name__ == "__main__":
    unittest.main()
