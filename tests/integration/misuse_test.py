"""Peers that do what they should not, while others go about their work."""

import contextlib
import socket
import struct
import threading
import unittest

import harness
from harness import TIMEOUT_SECONDS, grpc, pb
from loads import FULL, Memory, finish_load, load, milliseconds, say, start_load

WORK = ["--tokens=1-16", "--concurrency=4", "--check", "--warmup=0s"]


class MisuseTest(unittest.TestCase):
    def setUp(self):
        self.server = harness.Server("--demo")
        self.addCleanup(self.server.__exit__)
        host, port = self.server.grpc_address.rsplit(":", 1)
        self.address = (host, int(port))
        self.seconds = 20 if FULL else 2

    def work_goes_on(self, misuse):
        """Runs misuse(stop) while others are served; asserts that they are."""
        alone = load(self.server, *WORK, f"--duration={self.seconds}s")
        memory = Memory(self.server.process.pid)
        work = start_load(self.server, *WORK, f"--duration={self.seconds}s")
        stop = threading.Event()
        timer = threading.Timer(self.seconds, stop.set)
        timer.start()
        misuse(stop)
        stop.wait()
        done = finish_load(work)
        memory.stop()
        say("alone:", milliseconds(alone["latency_seconds"]))
        say("meanwhile:", milliseconds(done["latency_seconds"]))
        largest = memory.report()
        self.assertEqual(done["errors"], {})
        self.assertEqual(done["wrong"], 0)
        self.assertGreater(done["requests"], 0)
        return largest

    def connect(self):
        return socket.create_connection(self.address, TIMEOUT_SECONDS)

    def test_2000_idle_connections(self):
        def misuse(_):
            for index in range(2000):
                peer = stack.enter_context(self.connect())
                if index % 2:  # half a preface of HTTP/2
                    peer.sendall(b"PRI * HTTP/2.0\r\n\r\n")

        with contextlib.ExitStack() as stack:
            largest = self.work_goes_on(misuse)
        self.assertLess(largest, 1e9)

    def test_garbage_and_http_1(self):
        inputs = [
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
            bytes(range(256)) * 64,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([255]) * 4096,
            # A frame of HTTP/2 that promises 16 MB.
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00"
            + bytes(4096),
        ]

        def misuse(stop):
            while not stop.is_set():
                for data in inputs:
                    with self.connect() as peer:
                        with contextlib.suppress(OSError):
                            peer.sendall(data)
                            peer.settimeout(0.05)
                            peer.recv(4096)

        self.work_goes_on(misuse)

    def test_slow_readers(self):
        """Streams whose answers nobody takes, and calls likewise."""

        def misuse(stop):
            request = pb.ForwardRequest(
                model="demo",
                hidden_states=harness.random_states(2000, 256, 1),
            )
            for _ in range(8):
                channel = stack.enter_context(self.server.channel())
                # An endless sender that never reads.
                calls = harness.stub(channel).ForwardStream(
                    (request for _ in iter(stop.is_set, True)),
                    timeout=TIMEOUT_SECONDS,
                )
                stack.callback(calls.cancel)

        with contextlib.ExitStack() as stack:
            largest = self.work_goes_on(misuse)
        # Each stream may hold one message limit's worth of requests and
        # answers; what it really holds is far less, since reading stops.
        self.assertLess(largest, 2e9)

    def test_call_whose_answer_is_not_taken_is_ended(self):
        """A peer whose window never has room for an answer."""

        def frame(kind, flags, stream, payload):
            head = struct.pack(">IBI", len(payload) << 8 | kind, flags, stream)
            return head + payload

        def header(name, value):  # literal, not indexed
            return b"".join(
                [b"\0", bytes([len(name)]), name, bytes([len(value)]), value]
            )

        settings, headers, data, reset = 4, 1, 0, 3
        no_window = struct.pack(">HI", 4, 0)
        end_headers, end_stream = 4, 1
        message = pb.ForwardRequest(
            model="demo", hidden_states=harness.random_states(4, 256, 1)
        ).SerializeToString()
        with harness.Server("--demo", "--send_timeout=100ms") as server:
            host, port = server.grpc_address.rsplit(":", 1)
            with socket.create_connection(
                (host, int(port)), TIMEOUT_SECONDS
            ) as peer:
                peer.sendall(
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                    + frame(settings, 0, 0, no_window)
                    + frame(
                        headers,
                        end_headers,
                        1,
                        header(b":method", b"POST")
                        + header(b":scheme", b"http")
                        + header(b":path", b"/moe.v1.MoeService/Forward")
                        + header(b":authority", b"test")
                        + header(b"te", b"trailers")
                        + header(b"content-type", b"application/grpc"),
                    )
                    + frame(
                        data,
                        end_stream,
                        1,
                        struct.pack(">BI", 0, len(message)) + message,
                    )
                )
                kinds = []
                with peer.makefile("rb") as answers:
                    while reset not in kinds:
                        length_kind, _, _ = struct.unpack(
                            ">IBI", answers.read(9)
                        )
                        kinds.append(length_kind & 0xFF)
                        answers.read(length_kind >> 8)
            self.assertNotIn(data, kinds)
            self.assertEqual(server.metrics()["moe_stalled_calls_total"], 1)

    def refused(self, call, *codes):
        with self.assertRaises(grpc.RpcError) as raised:
            call()
        self.assertIn(raised.exception.code(), codes)

    def test_compressed_bombs(self):
        bomb = pb.ForwardRequest(model="demo")
        bomb.hidden_states.data = bytes(64_000_000)

        def misuse(stop):
            with self.server.channel() as channel:
                while not stop.is_set():
                    self.refused(
                        lambda: harness.stub(channel).Forward(
                            bomb,
                            compression=grpc.Compression.Gzip,
                            timeout=TIMEOUT_SECONDS,
                        ),
                        grpc.StatusCode.UNIMPLEMENTED,
                    )

        largest = self.work_goes_on(misuse)
        self.assertLess(largest, 1e9)

    def test_oversize_metadata(self):
        def misuse(stop):
            with self.server.channel() as channel:
                while not stop.is_set():
                    # gRPC (1.51) refuses it and ends the connection at the
                    # next call that comes over it.
                    self.refused(
                        lambda: harness.stub(channel).GetModel(
                            pb.GetModelRequest(model="demo"),
                            metadata=[("large", "x" * 100_000)],
                            timeout=TIMEOUT_SECONDS,
                        ),
                        grpc.StatusCode.RESOURCE_EXHAUSTED,
                        grpc.StatusCode.UNAVAILABLE,
                    )

        largest = self.work_goes_on(misuse)
        self.assertLess(largest, 1e9)


if __name__ == "__main__":
    unittest.main()
