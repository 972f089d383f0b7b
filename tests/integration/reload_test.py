"""Models are loaded, reloaded and unloaded while the server answers.

Short by default; MOE_FULL=1 makes it 200 reloads (see loads.py).
"""

import os
import signal
import tempfile
import threading
import time
import unittest

import harness
import inference_harness
import loads
from harness import TIMEOUT_SECONDS, grpc, pb
from inference_harness import oip

RELOADS = 200 if loads.FULL else 10
D_MODEL = 256
D_FF = 1024
NUM_EXPERTS = 8
# An expert is three matrices in BF16.
EXPERT_BYTES = 3 * D_MODEL * D_FF * 2
MODEL_BYTES = NUM_EXPERTS * EXPERT_BYTES


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def wait_until(true, what):
    """The time limit is reached only on failure."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true: {what}")
        time.sleep(0.05)


def wait_until_resident(pid, limit, what):
    """The address sanitizer keeps what is freed, to catch late uses."""
    with open(f"/proc/{pid}/maps") as maps:
        if "libasan" in maps.read():
            loads.say("skipped: memory given back, not with libasan:", what)
            return
    wait_until(lambda: resident_bytes(pid) <= limit, what)


class Repository:
    """A folder with one model, "m", in one of several versions.

    A version is a folder beside the repository, and the model a link to it, so
    that it changes at once.
    """

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "repository")
        os.mkdir(self.path)

    def cleanup(self):
        self._folder.cleanup()

    def version(self, name):
        return os.path.join(self._folder.name, name)

    def add_version(self, name, num_experts=NUM_EXPERTS):
        os.mkdir(self.version(name))
        loads.write_model(self.version(name), D_MODEL, D_FF, num_experts, 2)

    def choose(self, name, model="m"):
        link = os.path.join(self._folder.name, "link")
        os.symlink(self.version(name), link)
        os.replace(link, os.path.join(self.path, model))


class Traffic:
    """Clients whose answers must be those of one version, byte by byte."""

    def __init__(self, server, requests, expected):
        self.server, self.requests = server, requests
        self.expected = expected  # {version: [output]}
        self.answers = {version: 0 for version in expected}
        self.faults = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), daemon=True)
            for i in range(3)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, turn):
        with self.server.channel() as channel:
            moe = harness.stub(channel)
            while not self._end.is_set():
                turn = (turn + 1) % len(self.requests)
                try:
                    answer = moe.Forward(
                        self.requests[turn], timeout=TIMEOUT_SECONDS
                    ).output.data
                except grpc.RpcError as error:
                    self.faults.append(str(error))
                    continue
                versions = [
                    version
                    for version, outputs in self.expected.items()
                    if outputs[turn] == answer
                ]
                with self._lock:
                    if not versions:
                        self.faults.append(f"request {turn}: of no version")
                    for version in versions:
                        self.answers[version] += 1

    def stop(self):
        self._end.set()
        for thread in self._threads:
            thread.join()


class ReloadTest(unittest.TestCase):
    def setUp(self):
        self.repository = Repository()
        self.addCleanup(self.repository.cleanup)
        for version in ("one", "two"):
            self.repository.add_version(version)
        self.repository.choose("one")

    def start(self, *flags):
        server = harness.Server(
            f"--model_repository={self.repository.path}",
            # Requests of many tokens run in several batches.
            "--max_batch_tokens=64",
            *flags,
        )
        self.addCleanup(server.__exit__)
        channel = server.channel()
        self.addCleanup(channel.close)
        self.moe = harness.stub(channel)
        self.inference = inference_harness.stub(channel)
        return server

    def request(self, tokens, seed):
        return pb.ForwardRequest(
            model="m",
            layer=0,
            hidden_states=harness.random_states(tokens, D_MODEL, seed),
        )

    def output(self, request):
        return self.moe.Forward(request, timeout=TIMEOUT_SECONDS).output.data

    def load(self, model="m"):
        self.inference.RepositoryModelLoad(
            oip.RepositoryModelLoadRequest(model_name=model),
            timeout=TIMEOUT_SECONDS,
        )

    def index(self):
        models = self.inference.RepositoryIndex(
            oip.RepositoryIndexRequest(), timeout=TIMEOUT_SECONDS
        ).models
        return {model.name: (model.state, model.reason) for model in models}

    def test_reloads_under_load(self):
        server = self.start("--model_control")
        requests = [
            self.request(tokens, seed)
            for seed, tokens in enumerate((1, 3, 17, 64, 100, 200, 300))
        ]
        expected = {"one": [self.output(request) for request in requests]}
        self.repository.choose("two")
        self.load()
        expected["two"] = [self.output(request) for request in requests]
        for one, two in zip(expected["one"], expected["two"]):
            self.assertNotEqual(one, two)

        traffic = Traffic(server, requests, expected)
        self.addCleanup(traffic.stop)
        wait_until(lambda: traffic.answers["two"] > 100, "traffic flows")
        memory = loads.Memory(server.process.pid)
        for i in range(RELOADS):
            # By then threads have the memory that they keep.
            if i == RELOADS // 5:
                base = resident_bytes(server.process.pid)
            version = ("one", "two")[i % 2]
            self.repository.choose(version)
            self.load()
            # From now on the new version answers.
            self.assertEqual(self.output(requests[2]), expected[version][2])
        # A model that was kept would be more than that; what allocators keep
        # differs from one C library to another, but is less.
        wait_until_resident(
            server.process.pid,
            base + MODEL_BYTES // 2,
            f"back to {base} bytes of memory, + half a model;"
            f" now {resident_bytes(server.process.pid)}",
        )
        traffic.stop()
        memory.stop()
        self.assertEqual(traffic.faults, [])
        self.assertGreater(traffic.answers["one"], 0)
        self.assertGreater(traffic.answers["two"], 0)
        loads.say(
            f"{RELOADS} reloads, {sum(traffic.answers.values())} answers,"
            f" resident memory {base / 1e6:.0f} MB before,"
            f" {resident_bytes(server.process.pid) / 1e6:.0f} MB after"
        )
        memory.report()

    def test_unloading_gives_the_memory_back(self):
        self.repository.add_version("small", num_experts=2)
        self.repository.choose("small", model="other")
        server = self.start("--model_control")
        self.output(self.request(64, 1))
        loaded = resident_bytes(server.process.pid)
        self.inference.RepositoryModelUnload(
            oip.RepositoryModelUnloadRequest(model_name="m"),
            timeout=TIMEOUT_SECONDS,
        )
        with self.assertRaises(grpc.RpcError) as raised:
            self.output(self.request(1, 1))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)
        wait_until_resident(
            server.process.pid,
            loaded - 0.9 * MODEL_BYTES,
            f"{MODEL_BYTES} bytes less than {loaded}",
        )
        self.assertEqual(self.index()["m"], ("UNAVAILABLE", "unloaded"))
        self.load()
        self.output(self.request(1, 1))

    def break_version(self, name):
        with open(
            os.path.join(self.repository.version(name), "model.safetensors"),
            "r+b",
        ) as file:
            file.truncate(1000)

    def test_broken_version_leaves_the_old_serving(self):
        server = self.start("--model_control")
        before = self.output(self.request(5, 1))
        self.break_version("two")
        self.repository.choose("two")
        with self.assertRaises(grpc.RpcError) as raised:
            self.load()
        self.assertIn("model m: ", raised.exception.details())
        self.assertEqual(self.output(self.request(5, 1)), before)
        state, reason = self.index()["m"]
        self.assertEqual(state, "READY")
        self.assertNotEqual(reason, "")
        self.assertEqual(
            server.metrics()['moe_model_loads_total{result="failed"}'], 1
        )
        self.assertIn("the old one stays", server.stderr())

    def write_bad_versions(self):
        """{model: what its refusal must say}, each bad in a way of its own."""
        config, weights = "config.json", "model.safetensors"
        edits = [
            # file, what is in it, what takes its place, what the refusal says
            (
                config,
                '"num_hidden_layers": 1',
                '"num_hidden_layers": 1000000000000',
                "num_hidden_layers",
            ),
            (
                config,
                '"hidden_size": 256',
                '"hidden_size": 4611686018427387904',
                "hidden_size",
            ),
            (config, "{", "[", "config.json"),
            (weights, "down_proj", "drop_proj", "drop_proj"),
            (weights, "BF16", "XF16", "dtype"),
        ]
        bad = {}
        for i, (file, old, new, says) in enumerate(edits):
            name = f"bad-{i}"
            self.repository.add_version(name, num_experts=2)
            path = os.path.join(self.repository.version(name), file)
            with open(path, "rb") as before:
                data = before.read()
            self.assertIn(old.encode(), data)
            with open(path, "wb") as after:
                after.write(data.replace(old.encode(), new.encode()))
            bad[name] = says
        self.repository.add_version("short", num_experts=2)
        self.break_version("short")
        bad["short"] = "model.safetensors"
        os.mkdir(self.repository.version("huge"))
        harness.write_huge_checkpoint(self.repository.version("huge"))
        bad["huge"] = "memory"
        for name in bad:
            self.repository.choose(name, model=name)
        return bad

    def test_bad_models_under_load_change_nothing(self):
        server = self.start("--model_control")
        requests = [
            self.request(tokens, seed)
            for seed, tokens in enumerate((1, 3, 64, 200))
        ]
        expected = {"one": [self.output(request) for request in requests]}
        bad = self.write_bad_versions()
        traffic = Traffic(server, requests, expected)
        self.addCleanup(traffic.stop)
        wait_until(lambda: traffic.answers["one"] > 100, "traffic flows")
        memory = loads.Memory(server.process.pid)
        for i in range(max(RELOADS, len(bad))):
            name = list(bad)[i % len(bad)]
            with self.assertRaises(grpc.RpcError) as raised:
                self.load(name)
            self.assertIn(bad[name], raised.exception.details())
            self.assertIn(f"model {name}: ", raised.exception.details())
        traffic.stop()
        memory.stop()
        self.assertEqual(traffic.faults, [])
        loads.say(
            f"{max(RELOADS, len(bad))} loads of bad models,"
            f" {traffic.answers['one']} answers meanwhile"
        )
        memory.report()

    def test_hangup_loads_what_has_changed(self):
        server = self.start()
        request = self.request(5, 1)
        before = self.output(request)
        self.repository.choose("two")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.output(request) != before, "version two")
        self.repository.choose("one", model="new")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.index().get("new") == ("READY", ""), "new")
        os.unlink(os.path.join(self.repository.path, "new"))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "new" not in self.index(), "new is gone")
        self.output(request)
        server.terminate()
        self.assertEqual(server.wait(), 0)

    def test_poll_loads_what_has_changed(self):
        self.start("--repository_poll=100ms")
        request = self.request(5, 1)
        before = self.output(request)
        self.repository.choose("two")
        wait_until(lambda: self.output(request) != before, "version two")

    def test_models_that_do_not_fit_are_refused(self):
        self.start("--model_control")
        before = self.output(self.request(5, 1))
        # A file of a terabyte, all of it a hole.
        huge = self.repository.version("huge")
        os.mkdir(huge)
        harness.write_huge_checkpoint(huge)
        self.repository.choose("huge")
        with self.assertRaises(grpc.RpcError) as raised:
            self.load()
        self.assertEqual(
            raised.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED
        )
        self.assertIn("model m: memory: want", raised.exception.details())
        self.assertEqual(self.output(self.request(5, 1)), before)


if __name__ == "__main__":
    unittest.main()
