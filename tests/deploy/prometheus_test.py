"""Every query that is shipped, asked of a real Prometheus under load.

A query has to parse, to name metrics that exist, and to return numbers; what
may rightly return nothing is listed below with the reason.
"""

import html.parser
import json
import os
import re
import subprocess
import tempfile
import time
import unittest

import stack
from stack import DEPLOY, HERE, harness

# (part of a query, why it may be empty)
MAY_BE_EMPTY = [
    ("moe_tls_certificate_expiry", "the server runs without TLS"),
    ("moe_cgroup_quota_cpus{", "may have no quota: > 0 drops the 0"),
    ("changes(process_start_time_seconds", "the server does not restart"),
    ("moe_shard_failures_total{", "may not fail: > 0 drops the 0"),
]


class Codes(html.parser.HTMLParser):
    """The texts of the <code> elements of a page."""

    def __init__(self, text):
        super().__init__()
        self.texts, self._inside = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._inside = tag == "code"
        if self._inside:
            self.texts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.texts[-1] += data


def walk(node):
    """All dictionaries below a JSON value."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from walk(child)


class PrometheusTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.start_front()
        cls.load = stack.MixedLoad(cls.server)
        cls.addClassCleanup(cls.load.stop)
        cls.prometheus = stack.Prometheus(
            {"moe-server": [cls.server.metrics_address]}
        )
        cls.addClassCleanup(cls.prometheus.__exit__)
        # Rates need two scrapes, and rules that build on them a bit more.
        deadline = time.monotonic() + harness.TIMEOUT_SECONDS
        while (cls.prometheus.value("count_over_time(up[10m])") or 0) < 12:
            if time.monotonic() > deadline:
                raise AssertionError("no scrapes")
            time.sleep(0.2)
        cls.metadata = cls.prometheus.api("metadata")
        cls.series = set(cls.prometheus.api("label/__name__/values"))
        cls.used = set()

    @classmethod
    def start(cls, *flags):
        server = harness.Server("--demo", *flags)
        cls.addClassCleanup(server.__exit__)
        return server

    @classmethod
    def start_front(cls):
        """A front that holds some of the experts; two shards hold the others."""
        folder = tempfile.TemporaryDirectory(prefix="moe-placement-")
        cls.addClassCleanup(folder.cleanup)
        placement = os.path.join(folder.name, "placement.json")
        shards = [
            {
                "name": name,
                "targets": [f"ipv4:{cls.start(f'--experts={experts}').grpc_address}"],
                "experts": [{"experts": experts}],
            }
            for name, experts in (("shard-0", "4-9"), ("shard-1", "10-15"))
        ]
        with open(placement, "w") as file:
            json.dump({"shards": shards}, file)
        return cls.start(f"--shards={placement}", "--experts=0-3")

    def check(self, query, may_be_empty=None):
        """Asks a query over the last seconds."""
        with self.subTest(query=query):
            names = set(
                re.findall(r"(?<![\w:\"'.])(?:moe|process)[_:][\w:]+", query)
            )
            type(self).used |= names
            self.assertTrue(names or "up{" in query, "names no metric")
            now = time.time()
            result = self.prometheus.api(
                "query_range", query=query, start=now - 5, end=now, step=1
            )["result"]
            for name in names:
                if not name.startswith("moe_tls_certificate"):
                    self.assertIn(name, self.series)
                if re.search(rf"(rate|increase)\({name}\b", query):
                    family = re.sub("_(bucket|sum|count)$", "", name)
                    self.assertIn(
                        self.metadata[family][0]["type"],
                        ("counter", "histogram"),
                        f"rate of {name}",
                    )
            reasons = [why for part, why in MAY_BE_EMPTY if part in query]
            if may_be_empty or reasons:
                return
            numbers = [
                value
                for series in result
                for _, value in series["values"]
                if value != "NaN"
            ]
            self.assertTrue(numbers, "returns nothing")

    def test_grafana(self):
        for name in os.listdir(os.path.join(DEPLOY, "grafana", "dashboards")):
            path = os.path.join(DEPLOY, "grafana", "dashboards", name)
            with open(path) as file:
                dashboard = json.load(file)
            variables = {}
            for variable in dashboard["templating"]["list"]:
                if variable["type"] != "query":
                    continue
                match = re.fullmatch(
                    r"label_values\((.*), (\w+)\)", variable["query"]
                )
                query = self.filled(match[1], variables)
                self.check(query)
                values = {
                    one["metric"].get(match[2])
                    for one in self.prometheus.api("query", query=query)[
                        "result"
                    ]
                }
                self.assertNotIn(None, values, variable["query"])
                variables[variable["name"]] = "|".join(
                    re.escape(value) for value in values
                )
            ids = set()
            for node in walk(dashboard):
                if "gridPos" in node:
                    self.assertNotIn(node["id"], ids)
                    ids.add(node["id"])
                if "expr" in node:
                    query = self.filled(node["expr"], variables)
                    self.check(query)
                    self.check_legend(query, node.get("legendFormat", ""))
            self.assertGreater(len(ids), 20)

    def filled(self, query, variables):
        """As Grafana fills it in."""
        query = query.replace("$__rate_interval", "10s")
        query = query.replace("$__interval", "1s")
        for name, values in variables.items():
            # A string of PromQL: a backslash is two.
            query = query.replace("$" + name, values.replace("\\", "\\\\"))
        self.assertNotIn("$", query)
        return query

    def check_legend(self, query, legend):
        for label in re.findall(r"{{(\w+)}}", legend):
            for one in self.prometheus.api("query", query=query)["result"]:
                self.assertIn(label, one["metric"], query)

    def test_consoles(self):
        instance = self.server.metrics_address
        for page, parameters in (
            ("moe.html", {}),
            ("moe-server.html", {}),
            (
                "moe-server.html",
                {
                    "job": "moe-server",
                    "instance": instance,
                    "range": "5m",
                    "rate": "10s",
                },
            ),
        ):
            with self.subTest(page=page, parameters=parameters):
                text = self.prometheus.console(page, **parameters)
                self.assertTrue(
                    text.lstrip().startswith("<!doctype html>"), text[:500]
                )
                # What the templates show where a query returns nothing, or a
                # value that they must not.
                for bad in ("&ndash;", "no data</span>", "ZgotmplZ"):
                    at = text.find(bad)
                    self.assertEqual(at, -1, text[max(0, at - 300) : at])
                codes = Codes(text).texts
                self.assertGreater(len(codes), 2)
                for query in codes:
                    self.check(query)
        # The demo model has two routed layers of 16 experts.
        self.assertEqual(text.count('title="expert '), 32)
        # Of what the templates ask themselves, the names.
        folder = os.path.join(DEPLOY, "prometheus", "consoles")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name)) as file:
                type(self).used |= set(
                    re.findall(r"(?:moe|process)[_:][\w:]+", file.read())
                )

    def test_rules(self):
        names = set()
        for group in self.prometheus.api("rules")["groups"]:
            for rule in group["rules"]:
                self.assertEqual(rule["health"], "ok", rule)
                names.add(rule["name"])
                alert = rule["type"] == "alerting"
                # An alert that returns something would fire.
                self.check(rule["query"], may_be_empty=alert)
                if not alert:
                    self.check(rule["name"])
        self.assertGreater(len(names), 20)
        firing = self.prometheus.api("alerts")["alerts"]
        self.assertEqual(firing, [])

    def test_every_alert_has_a_runbook(self):
        with open(os.path.join(DEPLOY, "README.md")) as file:
            readme = file.read()
        for group in self.prometheus.api("rules")["groups"]:
            for rule in group["rules"]:
                if rule["type"] == "alerting":
                    name = rule["name"]
                    self.assertIn(f"\n#### {name}\n", readme)
                    self.assertEqual(
                        rule["annotations"]["runbook"],
                        f"deploy/README.md#{name.lower()}",
                    )

    def test_autoscaler(self):
        folder = os.path.join(DEPLOY, "kubernetes", "components", "autoscaling")
        with open(os.path.join(folder, "prometheus-adapter-rules.yaml")) as file:
            text = file.read()
        queries = re.findall(r"metricsQuery: (.*)", text)
        self.assertTrue(queries)
        series = re.search(r"seriesQuery: '?(moe_\w+)", text)[1]
        for query in queries:
            query = query.strip("'\"").replace("<<.Series>>", series)
            query = query.replace("<<.LabelMatchers>>", 'job="moe-server"')
            self.check(query.replace("<<.GroupBy>>", "instance"))
        # The autoscaler asks for the name that the adapter gives.
        name = re.search(r'as: "?(\w+)', text)[1]
        with open(os.path.join(folder, "hpa.yaml")) as file:
            self.assertIn(f"name: {name}\n", file.read())

    def test_experts_are_placed_by_what_prometheus_knows(self):
        with tempfile.TemporaryDirectory(prefix="moe-plan-") as folder:
            file = os.path.join(folder, "placement.json")
            printed = harness.run_client(
                "plan",
                f"--prometheus={self.prometheus.url}",
                "--window=1m",
                "--num_shards=4",
                "--replicas=4",
                "--targets=dns:///moe-shard-{i}:50051",
                f"--output={file}",
            )
            with open(file) as text:
                placement = json.load(text)
        for layer in (0, 1):
            self.assertRegex(
                printed,
                rf"demo layer {layer}: 16 experts, 5 on each of 4 shards; "
                r"[1-9]\d* tokens, balancedness 0\.\d+ -> (0\.[89]|1\.0)",
            )
        self.assertEqual(
            [shard["targets"] for shard in placement["shards"]],
            [[f"dns:///moe-shard-{i}:50051"] for i in range(4)],
        )

    def test_metrics_page_is_clean(self):
        page = stack.get(f"http://{self.server.metrics_address}/metrics")
        subprocess.run(
            ["promtool", "check", "metrics"],
            input=page,
            text=True,
            check=True,
            timeout=60,
        )

    # Last, by its name.
    def test_zz_every_metric_is_shown_somewhere(self):
        shown = {re.sub("_(bucket|sum|count)$", "", n) for n in self.used}
        for name in self.metadata:
            # How much is mapped says little: files count, too.
            if name == "process_virtual_memory_bytes":
                continue
            if name.startswith(("moe_", "process_")):
                self.assertTrue(
                    name in shown, f"{name}: on no dashboard, page or rule"
                )


class FilesTest(unittest.TestCase):
    def test_the_operators_rules_are_the_same(self):
        with open(os.path.join(DEPLOY, "prometheus", "rules.yml")) as file:
            rules = file.read()
        folder = os.path.join(
            DEPLOY, "kubernetes", "components", "prometheus-operator"
        )
        with open(os.path.join(folder, "prometheusrule.yaml")) as file:
            wrapped = file.read()
        groups = rules[rules.index("groups:") :].splitlines()
        self.assertEqual(
            wrapped[wrapped.index("  groups:") :].splitlines(),
            ["  " + line if line else "" for line in groups],
        )


class PromtoolTest(unittest.TestCase):
    def run_promtool(self, *arguments):
        done = subprocess.run(
            ["promtool", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_config(self):
        config = os.path.join(DEPLOY, "prometheus", "prometheus.yml")
        self.run_promtool("check", "config", config)

    def test_rules(self):
        rules = os.path.join(DEPLOY, "prometheus", "rules.yml")
        self.run_promtool("check", "rules", rules)
        self.run_promtool(
            "test", "rules", os.path.join(HERE, "rules_test.yml")
        )


if __name__ == "__main__":
    unittest.main()
