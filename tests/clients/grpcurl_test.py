"""grpcurl, which knows the services by reflection alone."""

import base64
import json
import subprocess
import unittest

import environment

import harness
from harness import TIMEOUT_SECONDS


class GrpcurlTest(harness.DemoTest):
    @classmethod
    def setUpClass(cls):
        try:
            cls.grpcurl = environment.go_tools(
                grpcurl="github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.1"
            )["grpcurl"]
        except environment.Missing as missing:
            environment.say_skipped(missing)
            raise unittest.SkipTest(str(missing)) from missing
        super().setUpClass()

    def run_grpcurl(self, *arguments, data=None):
        return subprocess.run(
            [
                self.grpcurl,
                "-plaintext",
                *(["-d", json.dumps(data)] if data is not None else []),
                self.server.grpc_address,
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )

    def test_lists_and_describes(self):
        services = self.run_grpcurl("list").stdout.split()
        self.assertIn("inference.GRPCInferenceService", services)
        self.assertIn("moe.v1.MoeService", services)
        described = self.run_grpcurl("describe", "inference.ModelInferRequest")
        self.assertIn("raw_input_contents = 7", described.stdout)

    def test_infers(self):
        request = self.request(tokens=2)
        done = self.run_grpcurl(
            "inference.GRPCInferenceService/ModelInfer",
            data={
                "model_name": f"demo.layers.{request.layer}",
                "id": "curl",
                "inputs": [
                    {
                        "name": "hidden_states",
                        "datatype": "FP32",
                        "shape": list(request.hidden_states.shape),
                        "contents": {
                            "fp32_contents": harness.values(
                                request.hidden_states
                            )
                        },
                    }
                ],
                "outputs": [{"name": "output"}],
            },
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["id"], "curl")
        self.assertEqual(
            base64.b64decode(answer["raw_output_contents"][0]),
            self.forward(request).output.data,
        )

    def test_tells_what_is_wrong(self):
        done = self.run_grpcurl(
            "inference.GRPCInferenceService/ModelInfer",
            data={"model_name": "demo.layers.0"},
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("InvalidArgument", done.stderr)
        self.assertIn("inputs: want hidden_states", done.stderr)


if __name__ == "__main__":
    unittest.main()
