"""A real Prometheus that watches a real server under a real load."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DEPLOY = os.path.join(ROOT, "deploy")
sys.path.insert(0, os.path.join(ROOT, "tests", "integration"))

if not shutil.which("prometheus") or not shutil.which("promtool"):
    # ctest looks for this word.
    print("skipped: no prometheus; apt-get install prometheus")
    sys.exit(0)

import harness  # noqa: E402
from harness import grpc, pb  # noqa: E402

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url, timeout=30):
    with _opener.open(url, timeout=timeout) as page:
        return page.read().decode()


class Prometheus:
    """Scrapes servers once a second, with the rules and consoles of deploy/.

    A context manager. jobs: {job: [HOST:PORT, ...]}.
    """

    def __init__(self, jobs):
        self._folder = tempfile.TemporaryDirectory(prefix="moe-prometheus-")
        config = os.path.join(self._folder.name, "prometheus.yml")
        with open(config, "w") as file:
            # JSON is YAML, too.
            json.dump(
                {
                    "global": {
                        "scrape_interval": "1s",
                        "scrape_timeout": "1s",
                        "evaluation_interval": "1s",
                    },
                    "rule_files": [
                        os.path.join(DEPLOY, "prometheus", "rules.yml")
                    ],
                    "scrape_configs": [
                        {
                            "job_name": job,
                            "static_configs": [{"targets": targets}],
                        }
                        for job, targets in jobs.items()
                    ],
                },
                file,
            )
        subprocess.run(
            ["promtool", "check", "config", config],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        consoles = os.path.join(DEPLOY, "prometheus", "consoles")
        # Prometheus has no port 0 that tells what it got.
        for _ in range(5):
            self.address = f"127.0.0.1:{_free_port()}"
            self.url = f"http://{self.address}"
            self._log = tempfile.TemporaryFile(mode="w+")
            self._process = subprocess.Popen(
                harness.die_with_parent(
                    [
                        "prometheus",
                        f"--config.file={config}",
                        f"--storage.tsdb.path={self._folder.name}/data",
                        f"--web.listen-address={self.address}",
                        f"--web.console.templates={consoles}",
                        f"--web.console.libraries={consoles}",
                        "--log.level=warn",
                    ]
                ),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
            if self._ready():
                return
            self._stop()
        raise AssertionError("prometheus does not start")

    def _ready(self):
        deadline = time.monotonic() + harness.TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._log.seek(0)
                print(self._log.read())
                return False
            with contextlib.suppress(OSError):
                get(self.url + "/-/ready")
                return True
            time.sleep(0.1)
        return False

    def _stop(self):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._stop()
        self._folder.cleanup()

    def api(self, path, **parameters):
        """The data of an answer; raises AssertionError with Prometheus' words."""
        url = f"{self.url}/api/v1/{path}?" + urllib.parse.urlencode(
            parameters, doseq=True
        )
        try:
            answer = json.loads(get(url))
        except urllib.error.HTTPError as error:
            answer = json.loads(error.read())
        if answer["status"] != "success":
            raise AssertionError(f"{parameters}: {answer['error']}")
        return answer["data"]

    def value(self, query):
        """Of a query with at most one series; None if it has none."""
        result = self.api("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else None

    def console(self, page, **parameters):
        """The HTML of a page of deploy/prometheus/consoles."""
        return get(
            f"{self.url}/consoles/{page}?" + urllib.parse.urlencode(parameters)
        )


def _free_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class MixedLoad(threading.Thread):
    """Every method, and callers' mistakes, until stopped."""

    def __init__(self, server, model="demo"):
        super().__init__(daemon=True)
        self._server, self._model = server, model
        self._end = threading.Event()
        self.start()

    def run(self):
        with self._server.channel() as channel:
            moe = harness.stub(channel)
            model = moe.GetModel(
                pb.GetModelRequest(model=self._model),
                timeout=harness.TIMEOUT_SECONDS,
            )
            seed = 0
            while not self._end.wait(0.02):
                seed += 1
                layer = model.layers[seed % len(model.layers)]
                states = harness.random_states(1 + seed % 7, model.d_model, seed)
                request = {
                    "model": self._model,
                    "layer": layer.layer,
                    "hidden_states": states,
                }
                calls = [
                    lambda: moe.Forward(pb.ForwardRequest(**request)),
                    lambda: list(
                        moe.ForwardStream(iter([pb.ForwardRequest(**request)]))
                    ),
                    lambda: moe.ListModels(pb.ListModelsRequest()),
                    lambda: moe.GetModel(pb.GetModelRequest(model="nobody")),
                ]
                if not layer.dense:
                    calls.append(lambda: moe.Route(pb.RouteRequest(**request)))
                for call in calls:
                    # The unknown model, and what is under way at the end.
                    with contextlib.suppress(grpc.RpcError):
                        call()

    def stop(self):
        self._end.set()
        self.join()
