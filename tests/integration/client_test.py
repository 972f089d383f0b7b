"""What moe-client writes, and what it makes of bad flags and bad servers."""

import os
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


if __name__ == "__main__":
    unittest.main()
