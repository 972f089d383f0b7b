"""The unit of deploy/systemd, as systemd reads it, and what it waits for.

systemd itself does not run in a test: its part of the readiness protocol is a
socket here.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "integration"))

import harness  # noqa: E402

SYSTEMD = os.path.join(ROOT, "deploy", "systemd")


def settings():
    """{name: last value} of the unit."""
    with open(os.path.join(SYSTEMD, "moe-server.service")) as file:
        lines = [line.strip() for line in file if "=" in line]
    return dict(line.split("=", 1) for line in lines if line[0] != "#")


class SystemdTest(unittest.TestCase):
    def test_the_server_says_when_it_is_ready_and_when_it_stops(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM
        ) as manager:
            path = os.path.join(folder, "notify")
            manager.bind(path)
            manager.settimeout(harness.TIMEOUT_SECONDS)
            os.environ["NOTIFY_SOCKET"] = path
            self.addCleanup(os.environ.pop, "NOTIFY_SOCKET")
            with harness.Server("--demo") as server:
                self.assertIn(b"READY=1", manager.recv(1024).split(b"\n"))
                server.terminate()
                self.assertIn(b"STOPPING=1", manager.recv(1024).split(b"\n"))
                self.assertEqual(server.wait(), 0)

    def test_the_flags_file_is_one(self):
        """The server reads it, and stumbles over the missing models only."""
        done = subprocess.run(
            [
                os.path.join(harness.BIN, "moe-server"),
                "--flagfile=" + os.path.join(SYSTEMD, "moe-server.flags"),
                "--model_repository=/nowhere",
                "--listen_address=127.0.0.1:0",
                "--metrics_address=",
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=harness.TIMEOUT_SECONDS,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("--model_repository: can't read", done.stderr)

    def test_stopping_takes_longer_than_a_drain(self):
        with open(os.path.join(SYSTEMD, "moe-server.flags")) as file:
            (drain,) = [
                line.split("=")[1].strip()
                for line in file
                if line.startswith("--drain_timeout=")
            ]
        stop = settings()["TimeoutStopSec"]
        self.assertGreater(int(stop.rstrip("s")), int(drain.rstrip("s")))
        self.assertEqual(settings()["Type"], "notify")

    def test_systemd_understands_every_line(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        with tempfile.TemporaryDirectory() as folder:
            unit = os.path.join(folder, "moe-server.service")
            with open(os.path.join(SYSTEMD, "moe-server.service")) as file:
                text = file.read()
            # It looks for the program.
            program = os.path.join(harness.BIN, "moe-server")
            with open(unit, "w") as file:
                file.write(text.replace("/usr/local/bin/moe-server", program))
            done = subprocess.run(
                ["systemd-analyze", "verify", "--man=no", unit],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=harness.TIMEOUT_SECONDS,
            )
            findings = [
                line for line in done.stdout.splitlines() if "moe-server" in line
            ]
            self.assertEqual(findings, [])


if __name__ == "__main__":
    unittest.main()
