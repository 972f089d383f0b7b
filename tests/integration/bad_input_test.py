"""Nothing that a client sends stops the server or changes another's answer."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import harness
from harness import TIMEOUT_SECONDS, grpc, pb, tensor
from inference import inference_pb2 as inference
from moe.shards import shards_pb2 as shards_pb

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
            b"\x0a\x02\xff\xff",  # a name that is no UTF-8
        ):
            with self.subTest(garbage[:8]):
                with self.assertRaises(grpc.RpcError) as raised:
                    forward(garbage, timeout=TIMEOUT_SECONDS)
                self.assertEqual(raised.exception.code(), Code.INVALID_ARGUMENT)
                self.assertIn("ForwardRequest", raised.exception.details())
        # Nor do callers write the log.
        get_model = self.channel.unary_unary("/moe.v1.MoeService/GetModel")
        with self.assertRaises(grpc.RpcError) as raised:
            get_model(b"\x0a\x02\xff\xff", timeout=TIMEOUT_SECONDS)
        self.assertEqual(raised.exception.code(), Code.INVALID_ARGUMENT)
        self.assertNotIn("UTF-8", self.server.stderr())

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


# The most bytes that a message may have besides the data of its tensors.
MAX_HEAD_BYTES = 64 << 10

HUGE = 32 << 20

# No request has a field of that number.
UNKNOWN = 15


def varint(number):
    """At most 2^35."""
    bits = []
    while number >= 128:
        bits.append(number & 127 | 128)
        number >>= 7
    return bytes([*bits, number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def padding(size):
    """A field that nobody knows, of so many bytes. Requires: size > 5."""
    for length_bytes in range(1, 6):
        length = size - 1 - length_bytes
        if len(varint(length)) == length_bytes:
            return field(UNKNOWN, bytes(length))
    raise AssertionError(size)


GROUPS = bytes([UNKNOWN << 3 | 3, UNKNOWN << 3 | 4]) * (HUGE // 2)

# What a small message may be made of that is large once it is parsed.
AMPLIFIERS = {
    "groups": GROUPS,
    "a group of groups": GROUPS[:1] + GROUPS + GROUPS[1:2],
    "numbers": bytes([UNKNOWN << 3, 1]) * (HUGE // 2),
    "bytes": field(UNKNOWN, bytes(HUGE)),
}


class Rpc:
    """One RPC, called in bytes."""

    def __init__(
        self,
        method,
        message=b"",
        *,
        tensor_bytes=0,
        stream=None,
        error=None,
        open_to_all=False,
        amplifiers=None,
    ):
        """tensor_bytes: of the message, as fields
        stream: "answers", or "both" ways
        error: (code, text) of an answer of a stream, of whose requests each may
            fail by itself
        amplifiers: of this RPC's own messages
        """
        self.path = f"/{method}"
        self.message = message
        self.head_bytes = len(message) - tensor_bytes
        self.stream = stream
        self.error = error
        self.open_to_all = open_to_all
        self.amplifiers = {**AMPLIFIERS, **(amplifiers or {})}

    def padded(self, size):
        """The message with so many bytes besides the data of tensors."""
        return self.message + padding(size - self.head_bytes)

    def call(self, channel, message, token):
        """(code, text); the first answer's, of streams."""
        metadata = [("authorization", f"Bearer {token}")] if token else []
        options = {"timeout": TIMEOUT_SECONDS, "metadata": metadata}
        try:
            if self.stream is None:
                channel.unary_unary(self.path)(message, **options)
            elif self.stream == "answers":
                answers = channel.unary_stream(self.path)(message, **options)
                next(answers)
                answers.cancel()
            else:
                answers = channel.stream_stream(self.path)(
                    iter([message]), **options
                )
                answer = next(answers)
                answers.cancel()
                if self.error is not None:
                    return self.error(answer)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return Code.OK, ""


def forward_error(answer):
    answer = pb.ForwardStreamResponse.FromString(answer)
    codes = {code.value[0]: code for code in Code}
    return codes[answer.code], answer.message


def infer_error(answer):
    message = inference.ModelStreamInferResponse.FromString(
        answer
    ).error_message
    name, _, text = message.partition(": ")
    return Code[name] if name else Code.OK, text


def all_rpcs(layer):
    """Of moe.v1, the Open Inference Protocol, health and reflection."""
    states = harness.random_states(2, layer.d_model, 1)
    forward = pb.ForwardRequest(
        model="demo", layer=layer.layer, hidden_states=states
    )
    route = pb.RouteRequest(
        model="demo", layer=layer.layer, hidden_states=states
    )
    infer = inference.ModelInferRequest(
        model_name=f"demo.layers.{layer.layer}",
        raw_input_contents=[states.data],
    )
    infer.inputs.add(
        name="hidden_states", datatype="FP32", shape=states.shape
    )

    def without(message, data):
        """The bytes of the message's tensor."""
        bare = type(message).FromString(message.SerializeToString())
        data(bare)
        return len(message.SerializeToString()) - len(bare.SerializeToString())

    def v1(name, message, **options):
        return Rpc(
            f"moe.v1.MoeService/{name}",
            message.SerializeToString(),
            tensor_bytes=without(
                message, lambda bare: bare.hidden_states.ClearField("data")
            ),
            amplifiers={"shape": field(4, field(2, b"\1" * HUGE))},
            **options,
        )

    def oip(name, message=b"", **options):
        return Rpc(
            f"inference.GRPCInferenceService/{name}", message, **options
        )

    def oip_infer(name, **options):
        return oip(
            name,
            infer.SerializeToString(),
            tensor_bytes=without(
                infer, lambda bare: bare.ClearField("raw_input_contents")
            ),
            amplifiers={
                "shape": field(5, field(3, b"\1" * HUGE)),
                # Of elements, which are data: four bytes each.
                "integers": infer.SerializeToString()
                + field(
                    5,
                    field(1, b"expert_ids")
                    + field(2, b"INT32")
                    + field(5, field(2, b"\1" * HUGE)),
                ),
            },
            **options,
        )

    nobody = field(1, b"nobody")
    return [
        v1("Forward", forward),
        v1("ForwardStream", forward, stream="both", error=forward_error),
        v1("Route", route),
        Rpc("moe.v1.MoeService/ListModels"),
        Rpc("moe.v1.MoeService/GetModel", field(1, b"demo")),
        oip("ServerLive", open_to_all=True),
        oip("ServerReady", open_to_all=True),
        oip("ModelReady", nobody),
        oip("ServerMetadata"),
        oip("ModelMetadata", nobody),
        oip_infer("ModelInfer"),
        oip_infer("ModelStreamInfer", stream="both", error=infer_error),
        oip("ModelConfig", nobody),
        oip("ModelStatistics"),
        oip("RepositoryIndex"),
        oip("RepositoryModelLoad", field(2, b"nobody")),
        oip("RepositoryModelUnload", field(2, b"nobody")),
        Rpc("grpc.health.v1.Health/Check", open_to_all=True),
        Rpc("grpc.health.v1.Health/Watch", stream="answers", open_to_all=True),
        Rpc(
            "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            field(7, b"*"),
            stream="both",
        ),
    ]


def shard_rpcs(layer):
    """Between servers."""
    states = harness.random_states(2, layer.d_model, 1)
    bare = shards_pb.ForwardExpertsRequest(model="demo", layer=layer.layer)
    bare.hidden_states.CopyFrom(states)
    size = len(bare.SerializeToString())
    bare.hidden_states.ClearField("data")
    tensor_bytes = size - len(bare.SerializeToString())
    bare.hidden_states.CopyFrom(states)
    return [
        Rpc("moe.shards.ExpertShardService/DescribeShard"),
        Rpc(
            "moe.shards.ExpertShardService/ForwardExperts",
            bare.SerializeToString(),
            tensor_bytes=tensor_bytes,
            amplifiers={
                "rows": bare.SerializeToString() + field(6, b"\1" * HUGE),
                "shape": field(8, field(2, b"\1" * HUGE)),
            },
        ),
    ]


class MessageSizeTest(unittest.TestCase):
    """Nothing is made of a message before who sends it may call, and before it
    is known how much of it is not the data of tensors."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.token = "the-token-of-this-test"
        tokens = os.path.join(folder.name, "tokens")
        with open(tokens, "w") as file:
            file.write(cls.token + "\n")
        common = ("--demo", f"--auth_token_file={tokens}", "--model_control")
        # Each RPC with the server that offers it, and a connection to that.
        cls.rpcs = []
        for flags, rpcs in (
            (common, all_rpcs),
            ((*common, "--experts=0-15"), shard_rpcs),
        ):
            server = harness.Server(*flags)
            cls.addClassCleanup(server.__exit__)
            channel = server.channel()
            cls.addClassCleanup(channel.close)
            model = harness.stub(channel).GetModel(
                pb.GetModelRequest(model="demo"),
                timeout=TIMEOUT_SECONDS,
                metadata=[("authorization", f"Bearer {cls.token}")],
            )
            layer = next(layer for layer in model.layers if not layer.dense)
            cls.rpcs += [(rpc, server, channel) for rpc in rpcs(layer)]

    def test_largest_message_is_answered_and_one_byte_more_is_refused(self):
        for rpc, _, channel in self.rpcs:
            with self.subTest(rpc.path):
                want = rpc.call(channel, rpc.message, self.token)
                largest = rpc.padded(MAX_HEAD_BYTES)
                self.assertEqual(
                    rpc.call(channel, largest, self.token), want
                )
                code, text = rpc.call(
                    channel, rpc.padded(MAX_HEAD_BYTES + 1), self.token
                )
                self.assertEqual(code, Code.INVALID_ARGUMENT, text)
                self.assertIn(
                    f"request: want at most {MAX_HEAD_BYTES} bytes", text
                )

    def test_calls_without_a_token_are_told_so_whatever_they_send(self):
        for rpc, _, channel in self.rpcs:
            for name, message in (
                ("good", rpc.message),
                ("largest", rpc.padded(MAX_HEAD_BYTES)),
                ("too large", rpc.padded(MAX_HEAD_BYTES + 1)),
                ("garbage", b"\xff" * 100),
            ):
                with self.subTest(rpc.path, message=name):
                    code, text = rpc.call(channel, message, None)
                    if rpc.open_to_all:
                        self.assertEqual(
                            (code, text),
                            rpc.call(channel, message, self.token),
                        )
                    else:
                        self.assertEqual(code, Code.UNAUTHENTICATED, text)

    def test_refusing_takes_the_memory_of_the_message(self):
        for rpc, server, channel in self.rpcs:
            for name, message in rpc.amplifiers.items():
                for token in (None, self.token):
                    with self.subTest(rpc.path, message=name, token=token):
                        self.refuse(rpc, server, channel, message, token)

    def refuse(self, rpc, server, channel, message, token):
        begin = memory(server.process.pid, reset_peak=True)
        code, text = rpc.call(channel, message, token)
        if token is None and not rpc.open_to_all:
            self.assertEqual(code, Code.UNAUTHENTICATED, text)
        else:
            self.assertEqual(code, Code.INVALID_ARGUMENT, text)
            self.assertRegex(
                text,
                "(request|rows): want at most [0-9]+ bytes|"
                "expert_ids.contents: want none beside raw_input_contents",
            )
        if memory_tells(server.process.pid):
            # Besides the message: what gRPC and the allocator keep at hand.
            self.assertLessEqual(
                memory(server.process.pid) - begin,
                2 * len(message) + (16 << 20),
            )


def memory(pid, reset_peak=False):
    """The peak of a process's resident memory, in bytes; since now, if it is
    reset."""
    if reset_peak:
        with open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write("5")
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def memory_tells(pid):
    """Whether a process gives memory back: the address sanitizer keeps what is
    freed, to catch late uses."""
    with open(f"/proc/{pid}/maps") as maps:
        return "libasan" not in maps.read()


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
