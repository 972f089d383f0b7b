"""What any gRPC client may rely on, checked with one that nobody here wrote."""

import os
import socket
import struct
import tempfile
import time
import unittest

import harness
from harness import TIMEOUT_SECONDS, grpc, pb, tensor, values


def tensor_of(data):
    return pb.Tensor(dtype=pb.F32, data=data)


def frames_of_call(address, path, message, metadata):
    """What a server sends to one call, up to the trailers, as frames of HTTP/2.

    By hand, since clients have limits of their own. Requires: a response that
    fits the windows that connections begin with.
    """

    def frame(kind, flags, stream, payload):
        return struct.pack(
            ">I", len(payload)
        )[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "content-type": "application/grpc",
        "te": "trailers",
        **metadata,
    }
    # Literal fields that enter no table, lengths in one byte each.
    block = b"".join(
        b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode()
        for k, v in headers.items()
    )
    body = b"\0" + struct.pack(">I", len(message)) + message
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as peer:
        peer.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, b"")  # SETTINGS
            + frame(1, 4, 1, block)  # HEADERS, all of them
            + frame(0, 1, 1, body)  # DATA, the end of the stream
        )
        received = b""
        while b"grpc-status\x01" not in received[:-1]:
            more = peer.recv(1 << 16)
            if not more:
                break
            received += more
        return received


class ForwardTest(harness.DemoTest):
    def test_same_bytes_as_moe_client(self):
        names = {pb.F32: "F32", pb.BF16: "BF16", pb.F16: "F16"}
        for dtype, name in names.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                request = self.request(tokens=5)
                if dtype != pb.F32:
                    request.hidden_states.CopyFrom(
                        harness.as_16_bits(request.hidden_states, dtype)
                    )
                source = os.path.join(folder, "in.safetensors")
                result = os.path.join(folder, "out.safetensors")
                harness.write_safetensors(
                    source, {"hidden_states": request.hidden_states}
                )
                harness.run_client(
                    "forward",
                    f"--server={self.server.grpc_address}",
                    "--model=demo",
                    f"--layer={request.layer}",
                    f"--input={source}",
                    f"--output={result}",
                )
                output = self.forward(request).output
                self.assertEqual(output.dtype, dtype)
                self.assertEqual(
                    harness.read_safetensors(result)["output"],
                    (name, list(output.shape), output.data),
                )

    def test_routing_of_the_server_given_back_changes_nothing(self):
        first = self.forward(self.request(tokens=4, return_routing=True))
        self.assertEqual(
            list(first.expert_ids.shape), [4, self.layer.top_k]
        )
        again = self.forward(
            self.request(
                tokens=4,
                expert_ids=first.expert_ids,
                routing_weights=first.routing_weights,
            )
        )
        self.assertEqual(again.output, first.output)

    def test_time_limit_of_centuries_is_none(self):
        # 2562047 hours are the most that nanoseconds in 64 bits can count; eight
        # digits are the most that a caller may send.
        request = self.request(tokens=1).SerializeToString()
        for limit in ("5S", "2562046H", "2562047H", "2562048H", "99999999H"):
            with self.subTest(limit):
                trailers = frames_of_call(
                    self.server.grpc_address,
                    "/moe.v1.MoeService/Forward",
                    request,
                    {"grpc-timeout": limit},
                )
                self.assertIn(b"grpc-status\x010", trailers)

    def test_id_of_minus_one_skips_the_place(self):
        ids = tensor([0, -1, 0, -1], [2, 2])
        weights = tensor([0.5, 0.5, 0.5, 0.25], [2, 2])
        alone = self.forward(
            self.request(
                tokens=2,
                expert_ids=tensor([0, 0], [2, 1]),
                routing_weights=tensor([0.5, 0.5], [2, 1]),
            )
        )
        skipped = self.forward(
            self.request(tokens=2, expert_ids=ids, routing_weights=weights)
        )
        self.assertEqual(skipped.output, alone.output)

    def test_route_is_the_routing_of_forward(self):
        forward = self.request(tokens=7, return_routing=True)
        route = self.moe.Route(
            pb.RouteRequest(
                model="demo",
                layer=forward.layer,
                request_id="r-1",
                hidden_states=forward.hidden_states,
                return_router_logits=True,
            ),
            timeout=TIMEOUT_SECONDS,
        )
        answer = self.forward(forward)
        self.assertEqual(route.request_id, "r-1")
        self.assertEqual(route.expert_ids, answer.expert_ids)
        self.assertEqual(route.routing_weights, answer.routing_weights)
        self.assertEqual(
            list(route.router_logits.shape), [7, self.layer.num_experts]
        )
        # The best expert has the highest logit.
        logits = values(route.router_logits)
        ids = values(route.expert_ids)
        for token in range(7):
            row = logits[token * self.layer.num_experts :][
                : self.layer.num_experts
            ]
            self.assertEqual(ids[token * self.layer.top_k], row.index(max(row)))

    def assert_close(self, got, want):
        """Rows of F32 numbers that agree as float32 computations do."""
        got, want = values(tensor_of(got)), values(tensor_of(want))
        self.assertEqual(len(got), len(want))
        tolerance = 2e-5 * max(map(abs, want)) + 1e-6
        for one, other in zip(got, want):
            self.assertLessEqual(abs(one - other), tolerance)

    def test_a_token_does_not_depend_on_its_batch(self):
        batch = self.request(tokens=9)
        whole = self.forward(batch).output.data
        row = self.layer.d_model * 4
        for token in range(9):
            alone = self.request(tokens=0)
            alone.hidden_states.shape[0] = 1
            alone.hidden_states.data = batch.hidden_states.data[
                token * row : (token + 1) * row
            ]
            self.assert_close(
                self.forward(alone).output.data,
                whole[token * row : (token + 1) * row],
            )

    def test_zero_tokens_are_a_valid_request(self):
        answer = self.forward(self.request(tokens=0, return_routing=True))
        self.assertEqual(list(answer.output.shape), [0, self.layer.d_model])
        self.assertEqual(answer.output.data, b"")
        self.assertEqual(list(answer.expert_ids.shape), [0, self.layer.top_k])

    def test_row_with_nan_or_infinity_spoils_itself_alone(self):
        clean = self.request(tokens=4, return_routing=True)
        row = self.layer.d_model * 4
        expected = self.forward(clean)
        for bad in (float("nan"), float("inf"), float("-inf")):
            with self.subTest(bad):
                numbers = values(clean.hidden_states)
                numbers[2 * self.layer.d_model + 5] = bad
                spoilt = pb.ForwardRequest()
                spoilt.CopyFrom(clean)
                spoilt.hidden_states.CopyFrom(
                    tensor(numbers, clean.hidden_states.shape)
                )
                answer = self.forward(spoilt)
                got, want = answer.output.data, expected.output.data
                self.assert_close(got[: 2 * row], want[: 2 * row])
                self.assert_close(got[3 * row :], want[3 * row :])
                middle = values(answer.output)[2 * self.layer.d_model :]
                for number in middle[: self.layer.d_model]:
                    self.assertNotEqual(number, number)
                top_k = self.layer.top_k
                ids = values(answer.expert_ids)[2 * top_k : 3 * top_k]
                self.assertEqual(len(set(ids)), top_k)
                for expert in ids:
                    self.assertIn(expert, range(self.layer.num_experts))

    def test_output_dtype_is_as_asked(self):
        for dtype, size in ((pb.F32, 4), (pb.BF16, 2), (pb.F16, 2)):
            output = self.forward(self.request(output_dtype=dtype)).output
            self.assertEqual(output.dtype, dtype)
            self.assertEqual(len(output.data), 3 * self.layer.d_model * size)

    def test_request_id_comes_back(self):
        answer = self.forward(self.request(request_id="batch 7"))
        self.assertEqual(answer.request_id, "batch 7")

    def test_answers_say_where_the_time_went(self):
        began = time.monotonic()
        answer = self.moe.Forward(self.request(), timeout=TIMEOUT_SECONDS)
        took = time.monotonic() - began
        timing = answer.timing
        self.assertGreaterEqual(timing.queue_seconds, 0)
        self.assertGreater(timing.compute_seconds, 0)
        self.assertLess(timing.queue_seconds + timing.compute_seconds, took)


class ModelsTest(harness.DemoTest):
    def test_lists_what_it_serves(self):
        models = self.moe.ListModels(
            pb.ListModelsRequest(), timeout=TIMEOUT_SECONDS
        ).models
        self.assertEqual([model.name for model in models], ["demo"])
        self.assertEqual(models[0], self.model)
        self.assertGreater(self.model.weights_bytes, 0)
        self.assertGreater(self.model.max_message_bytes, 0)
        self.assertGreater(self.model.max_request_tokens, 0)


# Health and reflection are spoken in bytes: Debian 12 has no Python modules for
# them, and the few fields have not changed since they were published.
SERVING = b"\x08\x01"


class HealthTest(harness.DemoTest):
    def check(self, service):
        return self.channel.unary_unary("/grpc.health.v1.Health/Check")(
            b"\x0a" + bytes([len(service)]) + service, timeout=TIMEOUT_SECONDS
        )

    def test_check_says_serving(self):
        self.assertEqual(self.check(b""), SERVING)
        self.assertEqual(self.check(b"moe.v1.MoeService"), SERVING)

    def test_check_of_an_unknown_service_is_not_found(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.check(b"no.such.Service")
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_watch_says_serving_at_once(self):
        watch = self.channel.unary_stream("/grpc.health.v1.Health/Watch")(
            b"", timeout=TIMEOUT_SECONDS
        )
        self.assertEqual(next(watch), SERVING)
        watch.cancel()

    def test_moe_client_health_agrees(self):
        harness.run_client("health", f"--server={self.server.grpc_address}")


class ReflectionTest(harness.DemoTest):
    def ask(self, field, text):
        call = self.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        request = bytes([field << 3 | 2, len(text)]) + text
        return next(call(iter([request]), timeout=TIMEOUT_SECONDS))

    def test_lists_the_services(self):
        listing = self.ask(7, b"*")
        self.assertIn(b"moe.v1.MoeService", listing)
        self.assertIn(b"grpc.health.v1.Health", listing)

    def test_describes_the_service(self):
        description = self.ask(4, b"moe.v1.MoeService")
        self.assertIn(pb.DESCRIPTOR.serialized_pb, description)


if __name__ == "__main__":
    unittest.main()
