"""A front and its shards as processes, on hosts of their own where that is
allowed: network namespaces with an address each, joined by a bridge.

By default each test is short; see loads.py.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import harness
from harness import TIMEOUT_SECONDS, grpc, pb
from loads import FULL, say, write_model

NUM_EXPERTS = 64
D_MODEL = 64
SHARDS = 4 if FULL else 2
REPLICAS = 2


def run(*command, check=True):
    return subprocess.run(
        command,
        check=check,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


# Ends with 0 if a port that nobody listens on says so.
_REFUSES = """
import errno, socket, sys
connection = socket.socket()
connection.settimeout(10)
sys.exit(connection.connect_ex((sys.argv[1], 9)) != errno.ECONNREFUSED)
"""


class Hosts:
    """Hosts with addresses of their own: network namespaces, or if those are
    not allowed this one under several loopback addresses."""

    def __init__(self, count):
        self.names = []
        self.tag = f"moe{os.getpid() % 100000}"
        self.net = f"10.{random.randint(64, 127)}.{random.randint(0, 255)}"
        self.separate = True
        try:
            self._join(count)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            # No iproute2, not root, or a kernel without bridges.
            print(f"    hosts: addresses 127.0.1.x of this one, since {error}")
            if self.names or shutil.which("ip"):
                self.__exit__()
            self.separate = False

    def _join(self, count):
        run("ip", "link", "add", self.tag, "type", "bridge")
        run("ip", "addr", "add", f"{self.net}.254/24", "dev", self.tag)
        run("ip", "link", "set", self.tag, "up")
        for i in range(count):
            self._add(i)
        # Packets may be dropped on the bridge: a refusal has to come back.
        run(
            *self.command(0),
            *[sys.executable, "-c", _REFUSES, self.address(1)],
        )

    def _add(self, i):
        name, veth = f"{self.tag}-{i}", self.link(i)
        run("ip", "netns", "add", name)
        self.names.append(name)
        run(
            *["ip", "link", "add", veth, "type", "veth"],
            *["peer", "name", "eth0", "netns", name],
        )
        run("ip", "link", "set", veth, "master", self.tag, "up")
        inside = ["ip", "netns", "exec", name, "ip"]
        run(*inside, "addr", "add", f"{self.net}.{i + 1}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")

    def link(self, i):
        return f"{self.tag}v{i}"

    def address(self, i):
        return f"{self.net}.{i + 1}" if self.separate else f"127.0.1.{i + 1}"

    def command(self, i):
        """What runs a command on a host."""
        return ["ip", "netns", "exec", self.names[i]] if self.separate else []

    def cut(self, i, is_cut):
        """Drops all packets to and from a host, without a word to either."""
        run("ip", "link", "set", self.link(i), "down" if is_cut else "up")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if not self.separate:
            return
        for name in self.names:
            run("ip", "netns", "del", name, check=False)
        run("ip", "link", "del", self.tag, check=False)


class Cluster:
    """One server with all experts, and a front with shards of them."""

    def __init__(self, hosts, folder, stack, *front_flags, model_flags=None):
        self.hosts, self.folder, self.stack = hosts, folder, stack
        model = os.path.join(folder, "model")
        if model_flags is None:
            os.mkdir(model)
            write_model(model, D_MODEL, 32, NUM_EXPERTS, 8)
            model_flags = [f"--model=m={model}"]
        self.flags = [
            *model_flags,
            "--num_compute_threads=1",
            "--measure_machine=false",
        ]
        per_shard = NUM_EXPERTS // SHARDS
        placement = {
            "shards": [
                {
                    "name": f"s{s}",
                    "targets": [
                        f"ipv4:{hosts.address(s * REPLICAS + r)}:50051"
                        for r in range(REPLICAS)
                    ],
                    "experts": [
                        {
                            "experts": f"{s * per_shard}-{(s + 1) * per_shard - 1}"
                        }
                    ],
                }
                for s in range(SHARDS)
            ]
        }
        self.placement = os.path.join(folder, "placement.json")
        with open(self.placement, "w") as file:
            json.dump(placement, file)
        self.whole = stack.enter_context(harness.Server(*self.flags))
        self.shards = {}
        for s in range(SHARDS):
            for r in range(REPLICAS):
                self.start_shard(s, r)
        self.front_flags = front_flags
        self.front = self.start_front()

    def start_shard(self, s, r):
        host = s * REPLICAS + r
        self.shards[s, r] = self.stack.enter_context(
            harness.Server(
                *self.flags,
                f"--shards={self.placement}",
                f"--shard_name=s{s}",
                f"--listen_address={self.hosts.address(host)}:50051",
                f"--metrics_address={self.hosts.address(host)}:0",
                prefix=self.hosts.command(host),
            )
        )

    def start_front(self, number=0):
        host = SHARDS * REPLICAS + number
        return self.stack.enter_context(
            harness.Server(
                *self.flags,
                f"--shards={self.placement}",
                f"--listen_address={self.hosts.address(host)}:50051",
                f"--metrics_address={self.hosts.address(host)}:0",
                *self.front_flags,
                prefix=self.hosts.command(host),
            )
        )

    def expected(self, count, seed):
        """Requests of random sizes, and what one server answers."""
        pick = random.Random(seed)
        with self.whole.channel() as channel:
            requests = []
            for i in range(count):
                request = pb.ForwardRequest(
                    model="m",
                    return_routing=True,
                    hidden_states=harness.random_states(
                        pick.randint(0, 32), D_MODEL, (seed, i).__hash__()
                    ),
                )
                answer = harness.stub(channel).Forward(
                    request, timeout=TIMEOUT_SECONDS
                )
                requests.append((request, harness.untimed(answer)))
        return requests


class Callers:
    """Threads that send requests to a front without pause, and check what
    comes back."""

    def __init__(self, channel, requests, threads=4):
        self.answered, self.wrong, self.errors = 0, 0, []
        self.seconds = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._channel = channel
        self._threads = [
            threading.Thread(target=self._run, args=(requests, i))
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, requests, seed):
        pick = random.Random(seed)
        stub = harness.stub(self._channel)
        while not self._end.is_set():
            request, expected = pick.choice(requests)
            began = time.monotonic()
            try:
                answer = stub.Forward(request, timeout=TIMEOUT_SECONDS)
                error = None
            except grpc.RpcError as failed:
                error = failed
            took = time.monotonic() - began
            with self._lock:
                self.seconds.append(took)
                if error is not None:
                    self.errors.append(f"{error.code().name}: {error.details()}")
                elif harness.untimed(answer) == expected:
                    self.answered += 1
                else:
                    self.wrong += 1

    def stop(self):
        self._end.set()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def percentile(self, part):
        ordered = sorted(self.seconds)
        return ordered[int(part * (len(ordered) - 1))]


def await_calls(server, method):
    """Waits until a server that has started again is called, under load."""
    series = f'moe_requests_total{{code="OK",method="{method}"}}'
    end = time.monotonic() + TIMEOUT_SECONDS
    while server.metrics()[series] == 0:
        if time.monotonic() > end:
            raise AssertionError("never called again")
        time.sleep(0.05)


def given(expert, seed=1):
    """One token for one expert."""
    return pb.ForwardRequest(
        model="m",
        hidden_states=harness.random_states(1, D_MODEL, seed),
        expert_ids=harness.tensor([expert], [1, 1]),
        routing_weights=harness.tensor([1.0], [1, 1]),
    )


class ShardsTest(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.hosts = self.stack.enter_context(Hosts(SHARDS * REPLICAS + 2))

    def cluster(self, *front_flags):
        return Cluster(self.hosts, self.folder, self.stack, *front_flags)

    def assert_all_right(self, callers):
        say(
            f"{callers.answered} answers, {callers.wrong} wrong,"
            f" {len(callers.errors)} failed,"
            f" p99 {1e3 * callers.percentile(0.99):.1f} ms"
        )
        self.assertEqual(callers.wrong, 0)
        self.assertEqual(callers.errors, [])
        self.assertGreater(callers.answered, 0)

    def test_same_bytes_as_one_server(self):
        cluster = self.cluster()
        requests = cluster.expected(10_000 if FULL else 200, seed=1)
        with cluster.front.channel() as channel:
            for request, expected in requests:
                answer = harness.stub(channel).Forward(
                    request, timeout=TIMEOUT_SECONDS
                )
                self.assertEqual(harness.untimed(answer), expected)
        say(f"{len(requests)} batches, the same bytes")

    def test_replicas_that_die_lose_nothing(self):
        cluster = self.cluster()
        callers = Callers(cluster.front.channel(), cluster.expected(50, seed=2))
        pick = random.Random(3)
        end = time.monotonic() + (120 if FULL else 6)
        kills = 0
        while time.monotonic() < end:
            time.sleep(pick.uniform(0.3, 1.0))
            s, r = pick.randrange(SHARDS), pick.randrange(REPLICAS)
            cluster.shards[s, r].process.kill()
            cluster.shards[s, r].process.wait()
            kills += 1
            time.sleep(pick.uniform(0, 0.5))
            cluster.start_shard(s, r)
            # The next one to die may be the other replica of this shard: not
            # before the front knows this one again.
            await_calls(cluster.shards[s, r], "ForwardExperts")
        callers.stop()
        say(f"{kills} replicas killed")
        self.assert_all_right(callers)

    def test_shard_that_is_gone_fails_those_who_need_it_alone(self):
        cluster = self.cluster()
        with cluster.front.channel() as channel:
            stub = harness.stub(channel)
            # An expert of each shard; shard 1 will go.
            firsts = range(0, NUM_EXPERTS, NUM_EXPERTS // SHARDS)

            def forward(expert):
                return harness.untimed(
                    stub.Forward(given(expert), timeout=TIMEOUT_SECONDS)
                )

            before = [forward(e) for e in firsts]
            for r in range(REPLICAS):
                cluster.shards[1, r].process.kill()
                cluster.shards[1, r].process.wait()
            slowest = 0
            for _ in range(50):
                began = time.monotonic()
                with self.assertRaises(grpc.RpcError) as failed:
                    forward(firsts[1])
                slowest = max(slowest, time.monotonic() - began)
                self.assertEqual(
                    failed.exception.code(), grpc.StatusCode.UNAVAILABLE
                )
                self.assertIn("shard s1", failed.exception.details())
                for e, answer in zip(firsts, before):
                    if e != firsts[1]:
                        self.assertEqual(forward(e), answer)
            say(f"UNAVAILABLE within {1e3 * slowest:.1f} ms")
            if FULL:
                self.assertLess(slowest, 0.05)
            cluster.start_shard(1, 0)
            began = time.monotonic()
            while True:
                try:
                    answer = forward(firsts[1])
                    break
                except grpc.RpcError:
                    self.assertLess(time.monotonic() - began, TIMEOUT_SECONDS)
                    time.sleep(0.01)
            recovery = time.monotonic() - began
            self.assertEqual(answer, before[1])
            say(f"back {recovery:.2f} s after the restart")
            if FULL:
                self.assertLess(recovery, 2)

    def test_link_that_is_cut_costs_its_timeout_once(self):
        if not self.hosts.separate:
            self.skipTest("needs network namespaces")
        cluster = self.cluster()
        callers = Callers(cluster.front.channel(), cluster.expected(50, seed=4))
        time.sleep(1)
        self.hosts.cut(0, True)
        time.sleep(6)
        self.hosts.cut(0, False)
        time.sleep(3)
        callers.stop()
        say(f"slowest {max(callers.seconds):.2f} s")
        self.assert_all_right(callers)
        # A sign of life is asked for after 1 s and waited for 1 s.
        self.assertLess(max(callers.seconds), TIMEOUT_SECONDS / 4)

    def test_slow_replica_is_hedged(self):
        cluster = self.cluster("--shard_hedge_percentile=95")
        requests = cluster.expected(50, seed=5)
        warm = Callers(cluster.front.channel(), requests)
        time.sleep(3)
        warm.stop()
        slow = cluster.shards[1, 0].process
        end = threading.Event()

        def slow_down():
            while not end.is_set():
                slow.send_signal(signal.SIGSTOP)
                end.wait(0.098)
                slow.send_signal(signal.SIGCONT)
                end.wait(0.002)

        slower = threading.Thread(target=slow_down)
        slower.start()
        callers = Callers(cluster.front.channel(), requests)
        time.sleep(20 if FULL else 4)
        callers.stop()
        end.set()
        slower.join()
        hedges = cluster.front.metrics()['moe_shard_hedges_total{shard="s1"}']
        say(
            f"p99 {1e3 * warm.percentile(0.99):.1f} ms, with a replica 50 x"
            f" slower {1e3 * callers.percentile(0.99):.1f} ms;"
            f" {hedges:.0f} hedges"
        )
        self.assertGreater(hedges, 0)
        self.assert_all_right(callers)

    def test_rolling_restart_loses_nothing(self):
        cluster = self.cluster()
        callers = Callers(cluster.front.channel(), cluster.expected(50, seed=6))
        for s in range(SHARDS):
            for r in range(REPLICAS):
                cluster.shards[s, r].terminate()
                self.assertEqual(cluster.shards[s, r].wait(), 0)
                cluster.start_shard(s, r)
                await_calls(cluster.shards[s, r], "ForwardExperts")
        callers.stop()
        self.assert_all_right(callers)

    def test_rolling_restart_of_fronts_loses_nothing(self):
        # As fronts are set up behind a load balancer: they say that they will
        # go before they do, and who balances asks for their health.
        cluster = self.cluster("--drain_delay=1s")
        fronts = [cluster.front, cluster.start_front(1)]
        config = {
            "loadBalancingConfig": [{"round_robin": {}}],
            "healthCheckConfig": {"serviceName": "moe.v1.MoeService"},
            "methodConfig": [
                {
                    "name": [{"service": "moe.v1.MoeService"}],
                    "retryPolicy": {
                        "maxAttempts": 5,
                        "initialBackoff": "0.01s",
                        "maxBackoff": "0.2s",
                        "backoffMultiplier": 3,
                        "retryableStatusCodes": ["UNAVAILABLE"],
                    },
                }
            ],
        }
        channel = grpc.insecure_channel(
            "ipv4:" + ",".join(front.grpc_address for front in fronts),
            options=[
                ("grpc.service_config", json.dumps(config)),
                ("grpc.enable_http_proxy", 0),
                ("grpc.max_reconnect_backoff_ms", 500),
                # A retry needs the request.
                ("grpc.per_rpc_retry_buffer_size", 1 << 24),
            ],
        )
        grpc.channel_ready_future(channel).result(TIMEOUT_SECONDS)
        callers = Callers(channel, cluster.expected(50, seed=7))
        for _ in range(3 if FULL else 1):
            for number in range(2):
                time.sleep(1)
                fronts[number].terminate()
                self.assertEqual(fronts[number].wait(), 0)
                fronts[number] = cluster.start_front(number)
                await_calls(fronts[number], "Forward")
        callers.stop()
        self.assert_all_right(callers)


if __name__ == "__main__":
    unittest.main()
