"""Nothing that a client sends stops the server or changes another's answer."""

import signal
import socket
import subprocess
import sys
import threading
import unittest

import harness
from harness import TIMEOUT_SECONDS, grpc, pb, tensor

Code = grpc.StatusCode


class BadInputTest(harness.DemoTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.reference = cls.forward(cls, cls.request(cls))

    def tearDown(self):
        # Whatever the test did: the same request, the same bytes.
        self.assertEqual(self.forward(self.request()), self.reference)
        self.assertIsNone(self.server.process.poll())

    def assert_refused(self, request, code, *fragments):
        with self.assertRaises(grpc.RpcError) as raised:
            self.forward(request)
        error = raised.exception
        self.assertEqual(error.code(), code, error.details())
        for fragment in fragments:
            self.assertIn(fragment, error.details())
        self.assertLessEqual(len(error.details()), 1024)

    def test_shapes_that_are_none(self):
        d_model = self.layer.d_model
        for shape in (
            [3, d_model - 1],
            [3, d_model + 1],
            [3 * d_model],
            [3, d_model, 1],
            [1, 3, d_model],
            [],
            [-1, d_model],
            [3, -d_model],
            [-3, -d_model],
            [3, 0],
            [0, 0],
            [2**62, d_model],
            [2**62, 2**62],
            [2**63 - 1, d_model],
            [-(2**63), d_model],
            # As many elements as there are, if the product wraps around.
            [2**64 // d_model + 3, d_model],
        ):
            with self.subTest(shape):
                request = self.request()
                request.hidden_states.shape[:] = shape
                self.assert_refused(
                    request, Code.INVALID_ARGUMENT, "hidden_states.shape"
                )

    def test_byte_counts_that_do_not_match(self):
        good = self.request().hidden_states.data
        for data in (b"", good[:-1], good[:-4], good + b"\0", good * 2):
            with self.subTest(len(data)):
                request = self.request()
                request.hidden_states.data = data
                self.assert_refused(
                    request, Code.INVALID_ARGUMENT, "hidden_states.data"
                )
        request = self.request(tokens=0)
        request.hidden_states.data = b"\0\0\0\0"
        self.assert_refused(
            request, Code.INVALID_ARGUMENT, "hidden_states.data"
        )

    def test_missing_hidden_states(self):
        request = self.request()
        request.ClearField("hidden_states")
        self.assert_refused(request, Code.INVALID_ARGUMENT, "hidden_states")

    def test_element_types(self):
        for dtype, code in (
            (pb.DTYPE_UNSPECIFIED, Code.INVALID_ARGUMENT),
            (17, Code.INVALID_ARGUMENT),
            (-1, Code.INVALID_ARGUMENT),
            (pb.I32, Code.UNIMPLEMENTED),
        ):
            with self.subTest(dtype):
                request = self.request()
                request.hidden_states.dtype = dtype
                self.assert_refused(request, code, "hidden_states.dtype")
        for dtype, code in (
            (17, Code.INVALID_ARGUMENT),
            (-1, Code.INVALID_ARGUMENT),
            (pb.I32, Code.UNIMPLEMENTED),
        ):
            with self.subTest(output_dtype=dtype):
                self.assert_refused(
                    self.request(output_dtype=dtype), code, "output_dtype"
                )

    def test_unknown_model_and_layer(self):
        for name in ("", "nobody", "demo ", "../demo", "x" * 5000):
            with self.subTest(name[:20]):
                request = self.request()
                request.model = name
                with self.assertRaises(grpc.RpcError) as raised:
                    self.forward(request)
                self.assertEqual(raised.exception.code(), Code.NOT_FOUND)
                self.assertIn("model", raised.exception.details())
                self.assertLessEqual(len(raised.exception.details()), 1024)
        for layer in (-1, 10**6, 2**31 - 1, -(2**31)):
            with self.subTest(layer):
                request = self.request()
                request.layer = layer
                self.assert_refused(request, Code.NOT_FOUND, "layer")
        with self.assertRaises(grpc.RpcError) as raised:
            self.moe.GetModel(
                pb.GetModelRequest(model="nobody"), timeout=TIMEOUT_SECONDS
            )
        self.assertEqual(raised.exception.code(), Code.NOT_FOUND)

    def test_request_id_too_long(self):
        self.assert_refused(
            self.request(request_id="x" * 129),
            Code.INVALID_ARGUMENT,
            "request_id",
        )

    def test_ids_out_of_range(self):
        for bad in (self.layer.num_experts, -2, 2**31 - 1, -(2**31)):
            with self.subTest(bad):
                self.assert_refused(
                    self.request(
                        tokens=2,
                        expert_ids=tensor([0, 1, 0, bad], [2, 2]),
                        routing_weights=tensor([0.5] * 4, [2, 2]),
                    ),
                    Code.INVALID_ARGUMENT,
                    "expert_ids",
                )

    def test_duplicate_ids(self):
        self.assert_refused(
            self.request(
                tokens=2,
                expert_ids=tensor([0, 1, 1, 1], [2, 2]),
                routing_weights=tensor([0.5] * 4, [2, 2]),
            ),
            Code.INVALID_ARGUMENT,
            "expert_ids",
        )

    def test_half_of_a_routing(self):
        self.assert_refused(
            self.request(tokens=1, expert_ids=tensor([0], [1, 1])),
            Code.INVALID_ARGUMENT,
            "routing_weights",
        )
        self.assert_refused(
            self.request(tokens=1, routing_weights=tensor([0.5], [1, 1])),
            Code.INVALID_ARGUMENT,
            "expert_ids",
        )

    def test_routing_that_does_not_fit(self):
        ids = tensor([0, 1], [2, 1])
        weights = tensor([0.5, 0.5], [2, 1])
        too_many = self.layer.num_experts + 1
        for name, bad_ids, bad_weights in (
            ("expert_ids", tensor([0], [1, 1]), weights),
            ("expert_ids", tensor([0, 1], [2]), weights),
            ("expert_ids", pb.Tensor(dtype=pb.I32, shape=[2, 0]), weights),
            (
                "expert_ids",
                tensor(list(range(too_many)) * 2, [2, too_many]),
                tensor([0.5] * 2 * too_many, [2, too_many]),
            ),
            ("expert_ids.dtype", tensor([0.0, 1.0], [2, 1]), weights),
            ("routing_weights", ids, tensor([0.5], [1, 1])),
            ("routing_weights", ids, tensor([0.5] * 4, [2, 2])),
            ("routing_weights.dtype", ids, tensor([1, 1], [2, 1])),
            (
                "routing_weights.data",
                ids,
                pb.Tensor(dtype=pb.F32, shape=[2, 1], data=b"\0" * 7),
            ),
        ):
            with self.subTest(name, ids=bad_ids.shape, w=bad_weights.shape):
                self.assert_refused(
                    self.request(
                        tokens=2, expert_ids=bad_ids, routing_weights=bad_weights
                    ),
                    Code.INVALID_ARGUMENT,
                    name,
                )

    def test_route_checks_as_forward_does(self):
        request = self.request()
        states = request.hidden_states
        states.shape[1] += 1
        with self.assertRaises(grpc.RpcError) as raised:
            self.moe.Route(
                pb.RouteRequest(
                    model="demo", layer=request.layer, hidden_states=states
                ),
                timeout=TIMEOUT_SECONDS,
            )
        self.assertEqual(raised.exception.code(), Code.INVALID_ARGUMENT)
        self.assertIn("hidden_states.shape", raised.exception.details())

    def test_more_tokens_than_allowed(self):
        tokens = self.model.max_request_tokens + 1
        request = self.request(tokens=0)
        request.hidden_states.dtype = pb.F16
        request.hidden_states.shape[0] = tokens
        request.hidden_states.data = bytes(2 * tokens * self.layer.d_model)
        self.assert_refused(
            request, Code.INVALID_ARGUMENT, "hidden_states.shape"
        )

    def test_message_over_the_limit(self):
        request = self.request()
        request.hidden_states.data = bytes(self.model.max_message_bytes + 1)
        with self.assertRaises(grpc.RpcError) as raised:
            self.forward(request)
        # gRPC's own answer, before there is a request to look at.
        self.assertEqual(raised.exception.code(), Code.RESOURCE_EXHAUSTED)
        self.assertIn(
            str(self.model.max_message_bytes), raised.exception.details()
        )

    def test_garbage_instead_of_protobuf(self):
        forward = self.channel.unary_unary("/moe.v1.MoeService/Forward")
        good = self.request().SerializeToString()
        for garbage in (
            b"\xff" * 100,
            b"\x0a\xff\xff\xff\xff\x0f",  # a string of 4 GiB that is not there
            good[:-1],
            bytes(range(256)),
        ):
            with self.subTest(garbage[:8]):
                with self.assertRaises(grpc.RpcError) as raised:
                    forward(garbage, timeout=TIMEOUT_SECONDS)
                self.assertEqual(raised.exception.code(), Code.INVALID_ARGUMENT)
                self.assertIn("ForwardRequest", raised.exception.details())

    def test_unknown_method_and_fields(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.channel.unary_unary("/moe.v1.MoeService/NoSuchMethod")(
                b"", timeout=TIMEOUT_SECONDS
            )
        self.assertEqual(raised.exception.code(), Code.UNIMPLEMENTED)
        # A field of a later version of the contract is ignored.
        extended = self.request().SerializeToString() + b"\xf8\x07\x01"
        answer = self.channel.unary_unary("/moe.v1.MoeService/Forward")(
            extended, timeout=TIMEOUT_SECONDS
        )
        self.assertEqual(
            harness.untimed(pb.ForwardResponse.FromString(answer)),
            self.reference,
        )

    def test_200_clients_at_once(self):
        num_clients = 200
        requests = [
            self.request(tokens=1 + client % 5, seed=100 + client % 17)
            for client in range(num_clients)
        ]
        expected = [self.forward(request) for request in requests]
        answers = [None] * num_clients
        together = threading.Barrier(num_clients)

        def run(client):
            together.wait(TIMEOUT_SECONDS)
            with self.server.channel() as channel:
                answers[client] = harness.untimed(
                    harness.stub(channel).Forward(
                        requests[client], timeout=TIMEOUT_SECONDS
                    )
                )

        threads = [
            threading.Thread(target=run, args=(client,))
            for client in range(num_clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(answers, expected)

    def test_client_that_vanishes_mid_call(self):
        for _ in range(3):
            client = subprocess.Popen(
                [sys.executable, __file__, self.server.grpc_address],
                stdout=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(client.stdout.close)
            self.assertEqual(client.stdout.readline(), "sending\n")
            client.send_signal(signal.SIGKILL)
            client.wait(TIMEOUT_SECONDS)

    def test_bytes_that_are_not_http2(self):
        host, port = self.server.grpc_address.rsplit(":", 1)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"PRI * HT"):
            with socket.create_connection(
                (host, int(port)), TIMEOUT_SECONDS
            ) as connection:
                connection.sendall(garbage)


def send_until_killed(address):
    """Keeps several batches of 512 tokens in flight on one connection."""
    channel = grpc.insecure_channel(address)
    moe = harness.stub(channel)
    model = moe.GetModel(pb.GetModelRequest(model="demo"))
    layer = next(layer for layer in model.layers if not layer.dense)
    request = pb.ForwardRequest(
        model="demo",
        layer=layer.layer,
        hidden_states=harness.random_states(512, layer.d_model, 1),
    )
    calls = [moe.Forward.future(request) for _ in range(8)]
    print("sending", flush=True)
    while True:
        calls.pop(0).result()
        calls.append(moe.Forward.future(request))


if __name__ == "__main__":
    if len(sys.argv) > 1 and ":" in sys.argv[1]:
        send_until_killed(sys.argv[1])
    unittest.main()
