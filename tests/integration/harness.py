"""A real server, and a client that nobody here wrote.

The client is Debian's grpcio with stubs made from the .proto files alone, at
the time the tests run. Programs and tools come from the environment that
CMakeLists.txt sets; without grpcio a test says so and is skipped.
"""

import array
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

try:
    import grpc
except ImportError:
    # ctest looks for this word.
    print("skipped: no grpcio; apt-get install python3-grpcio python3-protobuf")
    sys.exit(0)

BIN = os.environ["MOE_BIN_DIR"]

# Long enough for a sanitizer build on a busy machine; reached only on failure.
TIMEOUT_SECONDS = 120


def _make_stubs():
    out = tempfile.TemporaryDirectory(prefix="moe-stubs-")
    protos = os.environ["MOE_PROTO_DIR"]
    subprocess.run(
        [
            os.environ["MOE_PROTOC"],
            f"--proto_path={protos}",
            f"--python_out={out.name}",
            f"--grpc_out={out.name}",
            f"--plugin=protoc-gen-grpc={os.environ['MOE_GRPC_PYTHON_PLUGIN']}",
            "moe/v1/moe.proto",
            "moe/shards/shards.proto",
            "inference/inference.proto",
        ],
        check=True,
    )
    sys.path.insert(0, out.name)
    return out


_stubs = _make_stubs()
from moe.v1 import moe_pb2 as pb  # noqa: E402
from moe.v1 import moe_pb2_grpc  # noqa: E402


def die_with_parent(command):
    """The command such that a test killed by ctest leaves no process behind."""
    return ["setpriv", "--pdeathsig", "KILL", *command]


class Server:
    """moe-server on free ports; a context manager that stops it."""

    def __init__(self, *flags, prefix=(), stderr=None):
        """prefix: a command that runs the server, as `ip netns exec` does.
        stderr: a descriptor, in place of the file that stderr() reads."""
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            die_with_parent(
                [
                    *prefix,
                    os.path.join(BIN, "moe-server"),
                    "--listen_address=127.0.0.1:0",
                    "--metrics_address=127.0.0.1:0",
                    *(flags or ["--demo"]),
                ]
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log if stderr is None else stderr,
            text=True,
        )
        watchdog = threading.Timer(TIMEOUT_SECONDS, self.process.kill)
        watchdog.start()
        ready = self.process.stdout.readline()
        watchdog.cancel()
        if not ready.startswith("READY "):
            raise AssertionError(f"no READY but {ready!r}:\n{self.stderr()}")
        fields = dict(word.split("=", 1) for word in ready.split()[1:])
        self.grpc_address = fields["grpc"]
        self.metrics_address = fields["metrics"]

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def stderr(self):
        self.log.seek(0)
        return self.log.read()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        """The exit code."""
        return self.process.wait(TIMEOUT_SECONDS)

    def channel(self, **options):
        """A connection of its own, shared with no other channel."""
        channel = grpc.insecure_channel(
            self.grpc_address,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                *options.items(),
            ],
        )
        # gRPC's client (1.51) reads errno some way behind connect(). Once in
        # the life of a process a file is looked for in between (abseil's
        # clock), and then a connection in progress passes for a failed one,
        # "No such file or directory". It is tried again before there are calls.
        grpc.channel_ready_future(channel).result(TIMEOUT_SECONDS)
        return channel

    def metrics(self):
        """The metrics page as {'name{labels}': value}."""
        url = f"http://{self.metrics_address}/metrics"
        # No proxy from the environment may stand in between.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=TIMEOUT_SECONDS) as page:
            lines = page.read().decode().splitlines()
        return {
            name: float(value)
            for name, value in (
                line.rsplit(" ", 1) for line in lines if not line.startswith("#")
            )
        }


def stub(channel):
    return moe_pb2_grpc.MoeServiceStub(channel)


def untimed(answer):
    """A ForwardResponse but for its timing, which is never the same twice."""
    answer.ClearField("timing")
    return answer


def run_client(*arguments):
    """moe-client's standard output; fails the test unless it ends with 0."""
    done = subprocess.run(
        [os.path.join(BIN, "moe-client"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        raise AssertionError(f"moe-client {arguments}: {done}")
    return done.stdout


# ---- tensors ----------------------------------------------------------------

_CODES = {"f": pb.F32, "i": pb.I32}


def tensor(values, shape):
    """An F32 or I32 wire tensor, by the type of the first value."""
    code = "i" if values and isinstance(values[0], int) else "f"
    data = array.array(code, values)
    if sys.byteorder == "big":
        data.byteswap()
    return pb.Tensor(dtype=_CODES[code], shape=shape, data=data.tobytes())


def values(wire):
    """The numbers of an F32 or I32 wire tensor."""
    code = {dtype: code for code, dtype in _CODES.items()}[wire.dtype]
    data = array.array(code)
    data.frombytes(wire.data)
    if sys.byteorder == "big":
        data.byteswap()
    return data.tolist()


def random_states(tokens, d_model, seed):
    """Hidden states [tokens, d_model], multiples of 1/64, exact in 16 bits."""
    generator = random.Random(seed)
    numbers = [
        generator.randint(-128, 128) / 64.0 for _ in range(tokens * d_model)
    ]
    return tensor(numbers or [], [tokens, d_model])


def as_16_bits(wire, dtype):
    """An F32 tensor of numbers exact in 16 bits, as BF16 or F16."""
    numbers = values(wire)
    if dtype == pb.F16:
        data = struct.pack(f"<{len(numbers)}e", *numbers)
    else:
        data = b"".join(struct.pack("<f", number)[2:] for number in numbers)
    return pb.Tensor(dtype=dtype, shape=wire.shape, data=data)


# ---- safetensors ------------------------------------------------------------

_SAFETENSORS = {pb.F32: "F32", pb.BF16: "BF16", pb.F16: "F16", pb.I32: "I32"}


def write_safetensors(path, tensors):
    """tensors: {name: wire tensor}."""
    header, offset = {}, 0
    for name, wire in tensors.items():
        header[name] = {
            "dtype": _SAFETENSORS[wire.dtype],
            "shape": list(wire.shape),
            "data_offsets": [offset, offset + len(wire.data)],
        }
        offset += len(wire.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for wire in tensors.values():
            file.write(wire.data)


def read_safetensors(path):
    """{name: (dtype name, shape, bytes)}."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    return {
        name: (
            entry["dtype"],
            entry["shape"],
            data[entry["data_offsets"][0] : entry["data_offsets"][1]],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


# A small checkpoint of the family olmoe.
CHECKPOINT = {
    "model_type": "olmoe",
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 4,
    "norm_topk_prob": False,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
    "torch_dtype": "float32",
}


def write_checkpoint(folder, **changed_config):
    """A valid folder, but for entries of config.json that are given anew."""
    config = {**CHECKPOINT, **changed_config}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    d_model = CHECKPOINT["hidden_size"]
    d_ff = CHECKPOINT["intermediate_size"]
    num_experts = CHECKPOINT["num_experts"]
    mlp = "model.layers.0.mlp"
    tensors = {f"{mlp}.gate.weight": random_states(num_experts, d_model, 1)}
    for expert in range(num_experts):
        prefix = f"{mlp}.experts.{expert}"
        tensors[f"{prefix}.gate_proj.weight"] = random_states(d_ff, d_model, 2)
        tensors[f"{prefix}.up_proj.weight"] = random_states(d_ff, d_model, 3)
        tensors[f"{prefix}.down_proj.weight"] = random_states(d_model, d_ff, 4)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)


def write_huge_checkpoint(folder):
    """A checkpoint of a terabyte, whose data is a hole in the file."""
    d_model, d_ff, num_experts = 65536, 65536, 40
    config = {
        **CHECKPOINT,
        "hidden_size": d_model,
        "intermediate_size": d_ff,
        "num_experts": num_experts,
        "torch_dtype": "bfloat16",
    }
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    mlp = "model.layers.0.mlp"
    shapes = {f"{mlp}.gate.weight": [num_experts, d_model]}
    for expert in range(num_experts):
        prefix = f"{mlp}.experts.{expert}"
        shapes[f"{prefix}.gate_proj.weight"] = [d_ff, d_model]
        shapes[f"{prefix}.up_proj.weight"] = [d_ff, d_model]
        shapes[f"{prefix}.down_proj.weight"] = [d_model, d_ff]
    header, offset = {}, 0
    for name, (rows, columns) in shapes.items():
        end = offset + 2 * rows * columns
        header[name] = {
            "dtype": "BF16",
            "shape": [rows, columns],
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + offset)


class DemoTest(unittest.TestCase):
    """One server with the demo model for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--demo")
        cls.addClassCleanup(cls.server.__exit__)
        cls.channel = cls.server.channel()
        cls.addClassCleanup(cls.channel.close)
        cls.moe = stub(cls.channel)
        cls.model = cls.moe.GetModel(
            pb.GetModelRequest(model="demo"), timeout=TIMEOUT_SECONDS
        )
        # The first routed layer.
        cls.layer = next(layer for layer in cls.model.layers if not layer.dense)

    def request(self, tokens=3, seed=1, **fields):
        return pb.ForwardRequest(
            model="demo",
            layer=self.layer.layer,
            hidden_states=random_states(tokens, self.layer.d_model, seed),
            **fields,
        )

    def forward(self, request):
        return untimed(self.moe.Forward(request, timeout=TIMEOUT_SECONDS))
