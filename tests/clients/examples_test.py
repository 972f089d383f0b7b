"""The examples of deploy/examples do what they say, in every language.

Each class is a test of its own: examples_test.py PythonTest.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import environment
from environment import EXAMPLES

import harness
from harness import TIMEOUT_SECONDS, pb

PROTO = os.environ["MOE_PROTO_DIR"]
README = os.path.join(os.path.dirname(PROTO), "README.md")
D_MODEL = 256  # of the demo model


class ExamplesTest(harness.DemoTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # What all examples send: element i of 2 x 256 is (i mod 7) / 7.
        numbers = [(i % 7) / 7 for i in range(2 * D_MODEL)]
        output = harness.stub(cls.channel).Forward(
            pb.ForwardRequest(
                model="demo",
                layer=0,
                hidden_states=harness.tensor(numbers, [2, D_MODEL]),
            ),
            timeout=TIMEOUT_SECONDS,
        ).output
        first = " ".join(f"{x:.5f}" for x in harness.values(output)[:4])
        cls.expected = f"output [2,256]: {first} ...\n"

    def need(self, find, *arguments, **named):
        """What a function of the environment finds, or the test is skipped."""
        try:
            return find(*arguments, **named)
        except environment.Missing as missing:
            environment.say_skipped(missing)
            self.skipTest(str(missing))

    def assert_prints(self, command, **environ):
        done = subprocess.run(
            [*command, self.server.grpc_address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env={**os.environ, **environ},
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, self.expected)


def make_stubs(folder):
    subprocess.run(
        [
            os.environ["MOE_PROTOC"],
            f"--proto_path={PROTO}",
            f"--python_out={folder}",
            f"--grpc_out={folder}",
            "--plugin=protoc-gen-grpc="
            + os.environ["MOE_GRPC_PYTHON_PLUGIN"],
            "moe/v1/moe.proto",
            "inference/inference.proto",
        ],
        check=True,
    )


class PythonTest(ExamplesTest):
    def test_python(self):
        with tempfile.TemporaryDirectory() as stubs:
            make_stubs(stubs)
            for name in ("forward.py", "infer.py"):
                self.assert_prints(
                    [sys.executable, os.path.join(EXAMPLES, "python", name)],
                    PYTHONPATH=stubs,
                )

    def test_what_the_readme_shows(self):
        with open(README) as file:
            text = file.read()
        code, shown = re.search(
            r"```python\n(.*?)```\n\n```console\n(.*?)```", text, re.DOTALL
        ).groups()
        self.assertIn("127.0.0.1:50051", code)
        with tempfile.TemporaryDirectory() as folder:
            make_stubs(folder)
            script = os.path.join(folder, "readme.py")
            with open(script, "w") as file:
                file.write(
                    code.replace("127.0.0.1:50051", self.server.grpc_address)
                )
            done = subprocess.run(
                [sys.executable, script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=True,
            )
        # Kernels of other CPUs may differ in the last digits.
        number = re.compile(r"-?\d+\.\d+")
        self.assertEqual(number.sub("X", done.stdout), number.sub("X", shown))
        for got, want in zip(number.findall(done.stdout), number.findall(shown)):
            self.assertAlmostEqual(float(got), float(want), places=5)


class NodeTest(ExamplesTest):
    def test_node(self):
        modules = self.need(
            environment.node_modules, "@grpc/grpc-js@1", "@grpc/proto-loader@0"
        )
        for name in ("forward.js", "infer.js"):
            self.assert_prints(
                ["node", os.path.join(EXAMPLES, "node", name)],
                NODE_PATH=modules,
            )


class GoTest(ExamplesTest):
    def test_go(self):
        tools = self.need(
            environment.go_tools,
            **{
                "protoc-gen-go": "google.golang.org/protobuf/cmd/"
                "protoc-gen-go@v1.34.2",
                "protoc-gen-go-grpc": "google.golang.org/grpc/cmd/"
                "protoc-gen-go-grpc@v1.5.1",
            }
        )
        folder = os.path.join(environment.FOLDER, "go-examples")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(EXAMPLES, "go"), folder)
        packages = [
            "Mmoe/v1/moe.proto=examples/moev1",
            "Minference/inference.proto=examples/inference",
            "module=examples",
        ]
        subprocess.run(
            [
                os.environ["MOE_PROTOC"],
                f"--proto_path={PROTO}",
                *(f"--plugin={path}" for path in tools.values()),
                f"--go_out={folder}",
                f"--go-grpc_out={folder}",
                *(f"--go_opt={option}" for option in packages),
                *(f"--go-grpc_opt={option}" for option in packages),
                "moe/v1/moe.proto",
                "inference/inference.proto",
            ],
            check=True,
        )
        for name in ("forward", "infer"):
            program = os.path.join(folder, name, "program")
            self.need(
                environment.install,
                "the Go modules of the example",
                ["go", "build", "-mod=mod", "-o", program, f"./{name}"],
                cwd=folder,
                env={**os.environ, "GOFLAGS": ""},
            )
            self.assert_prints([program])


if __name__ == "__main__":
    unittest.main()
