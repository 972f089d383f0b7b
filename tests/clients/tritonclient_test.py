"""Triton's own Python client, unmodified, from PyPI."""

import asyncio
import os
import queue
import subprocess
import tempfile
import unittest

import environment

environment.use_python_with("tritonclient[grpc]>=2.70,<3", "ml_dtypes<1")

import harness  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
import tritonclient.grpc.aio  # noqa: E402
from google.protobuf import (  # noqa: E402
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from harness import TIMEOUT_SECONDS  # noqa: E402
from tritonclient.grpc import model_config_pb2, service_pb2  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

D_MODEL = 256  # of the demo model
ROUTED, DENSE = "demo.layers.0", "demo.layers.2"


def states(tokens, seed=1):
    """Numbers that are exact in 16 bits."""
    generator = numpy.random.default_rng(seed)
    return (
        generator.integers(-128, 128, size=(tokens, D_MODEL)) / 64
    ).astype(numpy.float32)


def infer_input(data, datatype="FP32", name="hidden_states"):
    tensor = triton.InferInput(name, list(data.shape), datatype)
    tensor.set_data_from_numpy(data)
    return tensor


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--demo", "--model_control")
        cls.addClassCleanup(cls.server.__exit__)
        cls.client = triton.InferenceServerClient(cls.server.grpc_address)
        cls.addClassCleanup(cls.client.close)

    def moe_client(self, data, dtype=harness.pb.F32, layer=0):
        """The bytes that moe-client gets for the same rows."""
        wire = harness.tensor(data.flatten().tolist(), data.shape)
        if dtype != harness.pb.F32:
            wire = harness.as_16_bits(wire, dtype)
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "in")
            result = os.path.join(folder, "out")
            harness.write_safetensors(source, {"hidden_states": wire})
            harness.run_client(
                "forward",
                f"--server={self.server.grpc_address}",
                "--model=demo",
                f"--layer={layer}",
                f"--input={source}",
                f"--output={result}",
            )
            return harness.read_safetensors(result)["output"][2]


class InferTest(ClientTest):
    def test_same_bytes_as_moe_client(self):
        data = states(5)
        for layer in range(3):
            got = self.client.infer(
                f"demo.layers.{layer}", [infer_input(data)]
            ).as_numpy("output")
            self.assertEqual(got.shape, data.shape)
            self.assertEqual(
                got.tobytes(), self.moe_client(data, layer=layer)
            )

    def test_sixteen_bits(self):
        data = states(3)
        half = self.client.infer(
            ROUTED, [infer_input(data.astype(numpy.float16), "FP16")]
        )
        self.assertEqual(
            half.as_numpy("output").tobytes(),
            self.moe_client(data, harness.pb.F16),
        )
        brain = self.client.infer(
            ROUTED, [infer_input(data.astype(ml_dtypes.bfloat16), "BF16")]
        )
        self.assertEqual(
            brain.get_response().raw_output_contents[0],
            self.moe_client(data, harness.pb.BF16),
        )

    def test_layer_as_parameter_id_and_requested_outputs(self):
        data = states(2)
        result = self.client.infer(
            "demo",
            [infer_input(data)],
            outputs=[
                triton.InferRequestedOutput("expert_ids"),
                triton.InferRequestedOutput("output"),
            ],
            request_id="batch 7",
            model_version="1",
            parameters={"layer": 1},
        )
        response = result.get_response()
        self.assertEqual(response.id, "batch 7")
        self.assertEqual(
            [output.name for output in response.outputs],
            ["expert_ids", "output"],
        )
        self.assertEqual(result.as_numpy("expert_ids").shape, (2, 4))
        self.assertEqual(result.as_numpy("expert_ids").dtype, numpy.int32)
        self.assertEqual(
            result.as_numpy("output").tobytes(), self.moe_client(data, layer=1)
        )

    def test_routing_given_back_changes_nothing(self):
        data = states(4)
        first = self.client.infer(ROUTED, [infer_input(data)])
        again = self.client.infer(
            ROUTED,
            [
                infer_input(data),
                infer_input(
                    first.as_numpy("expert_ids"), "INT32", "expert_ids"
                ),
                infer_input(
                    first.as_numpy("routing_weights"),
                    "FP32",
                    "routing_weights",
                ),
            ],
        )
        self.assertEqual(
            again.as_numpy("output").tobytes(),
            first.as_numpy("output").tobytes(),
        )

    def test_async_infer(self):
        data = states(3)
        answers = queue.Queue()
        for _ in range(20):
            self.client.async_infer(
                DENSE,
                [infer_input(data)],
                lambda result, error: answers.put((result, error)),
            )
        want = self.moe_client(data, layer=2)
        for _ in range(20):
            result, error = answers.get(timeout=TIMEOUT_SECONDS)
            self.assertIsNone(error)
            self.assertEqual(result.as_numpy("output").tobytes(), want)

    def test_asyncio(self):
        data = states(3)

        async def call():
            async with tritonclient.grpc.aio.InferenceServerClient(
                self.server.grpc_address
            ) as client:
                return await client.infer(ROUTED, [infer_input(data)])

        result = asyncio.run(call())
        self.assertEqual(
            result.as_numpy("output").tobytes(), self.moe_client(data)
        )

    def test_streaming(self):
        answers = queue.Queue()
        client = triton.InferenceServerClient(self.server.grpc_address)
        client.start_stream(
            lambda result, error: answers.put((result, error))
        )
        batches = [states(1 + i % 4, seed=i) for i in range(40)]
        for i, data in enumerate(batches):
            client.async_stream_infer(
                f"demo.layers.{i % 3}",
                [infer_input(data)],
                request_id=str(i),
                enable_empty_final_response=True,
            )
        # One that fails does not end the stream.
        client.async_stream_infer("nobody", [infer_input(batches[0])])
        client.async_stream_infer(
            DENSE, [infer_input(batches[0])], request_id="last"
        )
        for i, data in enumerate(batches):
            result, error = answers.get(timeout=TIMEOUT_SECONDS)
            self.assertIsNone(error)
            response = result.get_response()
            self.assertEqual(response.id, str(i))
            self.assertTrue(
                response.parameters["triton_final_response"].bool_param
            )
            self.assertEqual(
                result.as_numpy("output").tobytes(),
                self.moe_client(data, layer=i % 3),
            )
        _, error = answers.get(timeout=TIMEOUT_SECONDS)
        self.assertIn("NOT_FOUND: model: no model named", str(error))
        result, error = answers.get(timeout=TIMEOUT_SECONDS)
        self.assertIsNone(error)
        self.assertEqual(result.get_response().id, "last")
        client.stop_stream()
        client.close()

    def test_errors(self):
        with self.assertRaises(InferenceServerException) as raised:
            self.client.infer(ROUTED, [infer_input(states(2)[:, 1:])])
        self.assertEqual(
            raised.exception.status(), "StatusCode.INVALID_ARGUMENT"
        )
        self.assertIn("hidden_states.shape", raised.exception.message())
        with self.assertRaises(InferenceServerException) as raised:
            self.client.infer("nobody", [infer_input(states(1))])
        self.assertEqual(raised.exception.status(), "StatusCode.NOT_FOUND")


class DescriptionTest(ClientTest):
    def test_probes(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("demo"))
        self.assertTrue(self.client.is_model_ready(ROUTED, "1"))
        self.assertFalse(self.client.is_model_ready("nobody"))

    def test_server_metadata(self):
        metadata = self.client.get_server_metadata()
        self.assertEqual(metadata.name, "moe-server")
        self.assertIn("model_repository", metadata.extensions)

    def test_model_metadata(self):
        metadata = self.client.get_model_metadata(ROUTED, as_json=True)
        self.assertEqual(metadata["name"], ROUTED)
        self.assertEqual(metadata["versions"], ["1"])
        self.assertEqual(
            metadata["inputs"][0],
            {
                "name": "hidden_states",
                "datatype": "FP32",
                "shape": ["-1", str(D_MODEL)],
            },
        )
        self.assertEqual(len(metadata["outputs"]), 3)

    def test_model_config(self):
        config = self.client.get_model_config("demo").config
        self.assertEqual(config.max_batch_size, 8192)
        self.assertEqual(list(config.input[0].dims), [D_MODEL])
        self.assertEqual(
            config.input[0].data_type, model_config_pb2.DataType.TYPE_FP32
        )
        self.assertTrue(config.input[1].optional)

    def test_statistics(self):
        def count():
            return self.client.get_inference_statistics(DENSE).model_stats[0]

        before = count()
        self.client.infer(DENSE, [infer_input(states(7))])
        after = count()
        self.assertEqual(after.inference_count - before.inference_count, 7)
        self.assertEqual(after.execution_count - before.execution_count, 1)
        self.assertEqual(
            after.inference_stats.success.count
            - before.inference_stats.success.count,
            1,
        )
        self.assertGreater(after.inference_stats.compute_infer.ns, 0)
        everything = self.client.get_inference_statistics().model_stats
        self.assertEqual([model.name for model in everything], ["demo"])


class RepositoryTest(unittest.TestCase):
    def test_index_load_and_unload(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("one", "two"):
                os.mkdir(os.path.join(folder, name))
                harness.write_checkpoint(os.path.join(folder, name))
            server = harness.Server(
                f"--model_repository={folder}", "--model_control"
            )
            self.addCleanup(server.__exit__)
            client = triton.InferenceServerClient(server.grpc_address)
            self.addCleanup(client.close)

            def index():
                models = client.get_model_repository_index().models
                return {model.name: model.state for model in models}

            self.assertEqual(index(), {"one": "READY", "two": "READY"})
            client.unload_model("one")
            self.assertEqual(index(), {"one": "UNAVAILABLE", "two": "READY"})
            self.assertFalse(client.is_model_ready("one"))
            client.load_model("one")
            self.assertTrue(client.is_model_ready("one"))
            client.load_model("one")
            with self.assertRaises(InferenceServerException) as raised:
                client.load_model("three")
            self.assertEqual(raised.exception.status(), "StatusCode.NOT_FOUND")


# In KServe's specification, but not in Triton's.
NOT_OF_TRITON = {"inference.ModelMetadataResponse.properties"}


class LayoutTest(unittest.TestCase):
    """Our messages are those that are published, as far as they go."""

    @classmethod
    def setUpClass(cls):
        # Both have messages of the same names: a pool for each.
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run(
                [
                    os.environ["MOE_PROTOC"],
                    f"--proto_path={os.environ['MOE_PROTO_DIR']}",
                    f"--descriptor_set_out={file.name}",
                    "inference/inference.proto",
                ],
                check=True,
            )
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
        cls.pool = descriptor_pool.DescriptorPool()
        cls.pool.Add(files.file[0])
        cls.ours = cls.pool.FindFileByName("inference/inference.proto")

    def message(self, name):
        return message_factory.GetMessageClass(
            self.ours.message_types_by_name[name]
        )

    def published_messages(self):
        for file in (service_pb2, model_config_pb2):
            yield from file.DESCRIPTOR.message_types_by_name.items()

    def compare(self, ours, theirs):
        for field in ours.fields:
            name = field.full_name
            if name in NOT_OF_TRITON:
                continue
            self.assertIn(field.name, theirs.fields_by_name, name)
            other = theirs.fields_by_name[field.name]
            self.assertEqual(field.number, other.number, name)
            self.assertEqual(field.type, other.type, name)
            self.assertEqual(field.is_repeated, other.is_repeated, name)
            if field.message_type is not None:
                self.assertEqual(
                    field.message_type.full_name, other.message_type.full_name
                )
            if field.enum_type is not None:
                self.assertEqual(
                    field.enum_type.full_name, other.enum_type.full_name
                )
            self.assertEqual(
                field.containing_oneof is None, other.containing_oneof is None
            )
        for nested in ours.nested_types:
            if nested.full_name.split(".")[-1] == "PropertiesEntry":
                continue
            self.compare(nested, theirs.nested_types_by_name[nested.name])

    def test_messages(self):
        published = dict(self.published_messages())
        for name, ours in self.ours.message_types_by_name.items():
            self.assertIn(name, published)
            self.compare(ours, published[name])

    def test_enums(self):
        for name, ours in self.ours.enum_types_by_name.items():
            theirs = model_config_pb2.DESCRIPTOR.enum_types_by_name[name]
            self.assertEqual(
                {value.name: value.number for value in ours.values},
                {value.name: value.number for value in theirs.values},
            )

    def test_every_message_comes_back_as_it_was(self):
        """Written by ours and read by theirs, and the other way."""
        request = service_pb2.ModelInferRequest(
            model_name="m", model_version="1", id="i"
        )
        request.parameters["a"].bool_param = True
        request.parameters["b"].int64_param = -1
        request.parameters["c"].string_param = "s"
        request.parameters["d"].double_param = 0.5
        request.parameters["e"].uint64_param = 2**64 - 1
        tensor = request.inputs.add()
        tensor.name, tensor.datatype = "x", "FP32"
        tensor.shape.extend([-1, 2**40])
        tensor.parameters["p"].bool_param = False
        contents = tensor.contents
        contents.bool_contents.extend([True, False])
        contents.int_contents.extend([-1, 2**31 - 1])
        contents.int64_contents.extend([-(2**63)])
        contents.uint_contents.extend([2**32 - 1])
        contents.uint64_contents.extend([2**64 - 1])
        contents.fp32_contents.extend([1.5, -2.5])
        contents.fp64_contents.extend([0.1])
        contents.bytes_contents.extend([b"", b"\xff"])
        request.outputs.add().name = "y"
        request.outputs[0].parameters["q"].int64_param = 3
        request.raw_input_contents.extend([b"", b"raw"])
        ours = self.message("ModelInferRequest").FromString(request.SerializeToString())
        back = service_pb2.ModelInferRequest.FromString(
            ours.SerializeToString()
        )
        self.assertEqual(back, request)
        self.assertEqual(ours.inputs[0].contents.fp64_contents, [0.1])
        self.assertEqual(ours.raw_input_contents, [b"", b"raw"])
        # Fields that are ours alone, or theirs alone, are kept.
        metadata = self.message("ModelMetadataResponse")(name="m")
        metadata.properties["a"] = "b"
        theirs = service_pb2.ModelMetadataResponse.FromString(
            metadata.SerializeToString()
        )
        self.assertEqual(
            self.message("ModelMetadataResponse").FromString(theirs.SerializeToString()),
            metadata,
        )
        config = model_config_pb2.ModelConfig(
            name="m", max_batch_size=7, default_model_filename="f"
        )
        ours = self.message("ModelConfig").FromString(config.SerializeToString())
        self.assertEqual(ours.max_batch_size, 7)
        self.assertEqual(
            model_config_pb2.ModelConfig.FromString(ours.SerializeToString()),
            config,
        )


if __name__ == "__main__":
    unittest.main()
