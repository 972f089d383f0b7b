"""The counters count what happened, exactly."""

import re
import unittest

import harness
from harness import TIMEOUT_SECONDS, grpc


class MetricsTest(harness.DemoTest):
    def total(self, name, **labels):
        """Sum of all series of a metric that carry the labels."""
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        total = 0.0
        for series, value in self.server.metrics().items():
            match = re.fullmatch(r"([a-z_:]+)(?:\{(.*)\})?", series)
            if match and match[1] == name:
                if wanted <= set((match[2] or "").split(",")):
                    total += value
        return total

    def test_expert_tokens_are_tokens_times_top_k(self):
        before = self.total("moe_expert_tokens_total")
        sizes = [1, 0, 7, 64, 3]
        for seed, tokens in enumerate(sizes):
            self.forward(self.request(tokens=tokens, seed=seed))
        self.assertEqual(
            self.total("moe_expert_tokens_total") - before,
            sum(sizes) * self.layer.top_k,
        )

    def test_every_expert_has_a_series_from_the_start(self):
        series = [
            name
            for name in self.server.metrics()
            if name.startswith("moe_expert_tokens_total{")
            and f'layer="{self.layer.layer}"' in name
        ]
        self.assertEqual(len(series), self.layer.num_experts)

    def test_requests_are_counted_by_method_and_code(self):
        def count(code):
            return self.total("moe_requests_total", method="Forward", code=code)

        ok, refused = count("OK"), count("INVALID_ARGUMENT")
        timed = self.total(
            "moe_request_duration_seconds_count", method="Forward"
        )
        self.forward(self.request())
        self.forward(self.request())
        bad = self.request()
        bad.hidden_states.data = b""
        with self.assertRaises(grpc.RpcError):
            self.forward(bad)
        self.assertEqual(count("OK") - ok, 2)
        self.assertEqual(count("INVALID_ARGUMENT") - refused, 1)
        self.assertEqual(
            self.total("moe_request_duration_seconds_count", method="Forward")
            - timed,
            3,
        )
        self.assertEqual(self.total("moe_requests_in_flight"), 0)

    def test_unknown_names_from_clients_create_no_series(self):
        def forward_to_nobody():
            request = self.request()
            request.model = "nobody"
            with self.assertRaises(grpc.RpcError):
                self.forward(request)

        forward_to_nobody()
        before = set(self.server.metrics())
        forward_to_nobody()
        after = set(self.server.metrics())
        self.assertEqual(after, before)
        self.assertFalse([name for name in after if "nobody" in name])

    def test_detail_of_experts_is_what_was_asked_for(self):
        for detail, experts, layers in (
            ("full", 32, 3),
            ("layer", 0, 3),
            ("off", 0, 0),
        ):
            with self.subTest(detail), harness.Server(
                "--demo", f"--expert_metrics={detail}"
            ) as server:
                names = [name.split("{")[0] for name in server.metrics()]
                self.assertEqual(names.count("moe_expert_tokens_total"), experts)
                self.assertEqual(names.count("moe_layer_tokens_total"), layers)
                self.assertEqual(names.count("moe_expert_seconds_total"), 1)
        self.assertIn("metrics of each expert", self.server.stderr())

    def test_bytes_are_those_of_the_messages(self):
        request = self.request(tokens=5)
        before = self.total("moe_received_bytes_total", method="Forward")
        sent = self.total("moe_sent_bytes_total", method="Forward")
        response = self.moe.Forward(request, timeout=TIMEOUT_SECONDS)
        self.assertEqual(
            self.total("moe_received_bytes_total", method="Forward") - before,
            request.ByteSize(),
        )
        self.assertEqual(
            self.total("moe_sent_bytes_total", method="Forward") - sent,
            response.ByteSize(),
        )

    def test_build_info_is_one(self):
        self.assertEqual(self.total("moe_build_info"), 1)


if __name__ == "__main__":
    unittest.main()
