"""The families against the newest release of the transformers library.

Two things are held to it: the defaults of its configuration classes, which
class_defaults.json has for the tests that run everywhere, and its writer: every
golden case is read and saved by the library, and what it saved must give the
recorded vectors.

    transformers_test.py --write    rewrites class_defaults.json

Where PyPI can't be reached the tests say so and are skipped.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "data")
DEFAULTS = os.path.join(HERE, "class_defaults.json")

sys.path.insert(0, os.path.join(HERE, "..", "clients"))

# What PyPI's torch takes with all that it wants.
TORCH_BYTES = 12 << 30


def choose_interpreter():
    """The configuration classes need no torch, which is large; the writer does."""
    import environment

    if "DefaultsTest" in sys.argv:
        environment.use_python_with("transformers", name="transformers")
        return
    folder = os.path.join(environment.FOLDER, "transformers-torch")
    free = shutil.disk_usage(os.path.dirname(environment.FOLDER)).free
    if not os.path.exists(folder) and free < TORCH_BYTES:
        environment.say_skipped(
            f"torch from PyPI wants {TORCH_BYTES >> 30} GiB of disk, "
            f"there are {free >> 30}"
        )
        sys.exit(0)
    environment.use_python_with(
        "transformers", "torch", "accelerate", name="transformers-torch"
    )


if "--write" not in sys.argv:
    choose_interpreter()

# The types that the library has a class for. kimi_k2, bailing_moe and
# bailing_moe_v2 have classes beside their weights.
MODEL_TYPES = """
    bert bloom dbrx deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5_moe
    falcon gemma2 gemma3_text glm4_moe glm_moe_dsa gpt2 gpt_neox gpt_oss
    granitemoe granitemoeshared hunyuan_v1_moe jamba lfm2_moe llama llama4_text
    longcat_flash minimax minimax_m2 mistral mixtral nemotron nemotron_h
    nllb-moe olmoe opt phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text
    qwen3_moe qwen3_next qwen3_vl_moe_text starcoder2 switch_transformers t5
""".split()

# Case: why the library's writer can't be held to its vectors.
NOT_SAVED = {
    "dbrx-a": "the release wants a float for moe_normalize_expert_weights, "
    "which published files have as 1, and multiplies by transposed weights",
    "deepseek_v3_fp8-a": "the release dequantises, and takes partial blocks "
    "for smaller ones",
    "deepseek_v3_fp8_mixed-a": "likewise",
    "kimi_k2-a": "its class is not part of the library",
    "longcat_flash-a": "the release wants weights of the identity experts, "
    "which no published file has",
}


def flat(config, prefix=""):
    """Numbers, words and null of a config and the objects in it."""
    values = {}
    for key, value in sorted(config.items()):
        if isinstance(value, dict):
            if key in ("ffn_config", "ffn_act_fn"):
                values.update(flat(value, f"{prefix}{key}."))
        elif value is None or isinstance(value, (bool, int, float, str)):
            values[prefix + key] = value
    return values


def class_defaults():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    # What every class has, and what differs from process to process.
    common = flat(CONFIG_MAPPING["llama"].__mro__[1]().to_dict())
    defaults = {}
    for model_type in MODEL_TYPES:
        values = flat(CONFIG_MAPPING[model_type]().to_dict())
        defaults[model_type.removesuffix("_text")] = {
            key: value
            for key, value in values.items()
            if key.rsplit(".", 1)[-1] not in common
            and not key.endswith("model_type")
            and not key.endswith("_token_id")
            and not key.endswith("_token_index")
        }
    return defaults


def text_of(defaults):
    return json.dumps(defaults, indent=1, sort_keys=True) + "\n"


class DefaultsTest(unittest.TestCase):
    def test_recorded_defaults_are_those_of_the_newest_classes(self):
        with open(DEFAULTS) as file:
            recorded = json.load(file)
        newest = class_defaults()
        self.assertEqual(sorted(recorded), sorted(newest))
        for model_type, values in newest.items():
            with self.subTest(model_type):
                # A release may add a key any day, or drop one that it does not
                # read any more; what is served stays right. Recording them is
                # --write's, and class_defaults_test then asks what they mean.
                both = recorded[model_type].keys() & values.keys()
                for key in sorted(recorded[model_type].keys() ^ values.keys()):
                    print(f"{model_type}: {key}: in one of recorded and newest")
                self.assertEqual(
                    {key: recorded[model_type][key] for key in both},
                    {key: values[key] for key in both},
                )


def save_again(case, folder):
    """Reads a case by the library and saves it, in float32: exactly."""
    import torch
    import transformers

    with open(os.path.join(CASES, case, "config.json")) as file:
        architecture = json.load(file)["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(
        os.path.join(CASES, case), dtype=torch.float32
    )
    model.save_pretrained(folder)
    shutil.copy(os.path.join(CASES, case, "vectors.safetensors"), folder)


class WriterTest(unittest.TestCase):
    def test_what_the_newest_release_saves_gives_the_same_vectors(self):
        warnings.simplefilter("ignore")
        programs = os.environ["MOE_BIN_DIR"]
        with tempfile.TemporaryDirectory(prefix="moe-saved-") as repository:
            saved = []
            for case in sorted(os.listdir(CASES)):
                if not os.path.isdir(os.path.join(CASES, case)):
                    continue
                if case in NOT_SAVED:
                    print(f"{case}: not saved: {NOT_SAVED[case]}")
                    continue
                folder = os.path.join(repository, case)
                with self.subTest(case):
                    save_again(case, folder)
                    saved.append(case)
            self.assertGreater(len(saved), 43)
            server = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    os.path.join(programs, "moe-server"),
                    f"--model_repository={repository}",
                    "--listen_address=127.0.0.1:0",
                    "--metrics_address=127.0.0.1:0",
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(server.stdout.close)
            self.addCleanup(server.wait)
            self.addCleanup(server.terminate)
            ready = server.stdout.readline()
            self.assertTrue(ready.startswith("READY grpc="), ready)
            address = ready.split()[1].removeprefix("grpc=")
            for case in saved:
                with self.subTest(case):
                    vectors = os.path.join(
                        repository, case, "vectors.safetensors"
                    )
                    verify = subprocess.run(
                        [
                            os.path.join(programs, "moe-client"),
                            "verify",
                            f"--server={address}",
                            f"--model={case}",
                            f"--vectors={vectors}",
                        ],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                    self.assertEqual(verify.returncode, 0, verify.stdout)
                    print(f"{case:24} {verify.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    if "--write" in sys.argv:
        with open(DEFAULTS, "w") as output:
            output.write(text_of(class_defaults()))
    else:
        import transformers

        print(f"transformers {transformers.__version__}", flush=True)
        unittest.main()
