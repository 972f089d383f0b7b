"""Clients from package registries, installed once below the build folder.

Where a registry can't be reached, or a language is not there, a test says so and
is skipped.
"""

import os
import shutil
import subprocess
import sys

FOLDER = os.environ["MOE_CLIENTS_DIR"]
SOURCE = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
EXAMPLES = os.path.join(SOURCE, "deploy", "examples")
INSTALL_SECONDS = 1800

sys.path.insert(0, os.path.join(SOURCE, "tests", "integration"))


class Missing(Exception):
    """Says what a test needs and can't have."""


def say_skipped(missing):
    # ctest looks for this word.
    print(f"skipped: {missing}", flush=True)


def install(what, command, **options):
    """Runs a package manager. Raises Missing."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS,
            **options,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{what} can't be installed: {error}") from error
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise Missing(f"{what} can't be installed: {last}")


def installed(stamp, wanted):
    return os.path.exists(stamp) and open(stamp).read() == wanted


def mark_installed(stamp, wanted):
    with open(stamp, "w") as file:
        file.write(wanted)


def python_with(name, *packages):
    """The programs of an environment with these packages from PyPI.

    Raises Missing.
    """
    folder = os.path.join(FOLDER, name)
    stamp = os.path.join(folder, "installed")
    wanted = "\n".join(packages)
    programs = os.path.join(folder, "bin")
    if not installed(stamp, wanted):
        install("venv", [sys.executable, "-m", "venv", "--clear", folder])
        install(
            f"{packages[0]} from PyPI",
            [os.path.join(programs, "python"), "-m", "pip", "install"]
            + ["--quiet", *packages],
        )
        mark_installed(stamp, wanted)
    return programs


def use_python_with(*packages, name="python"):
    """Goes on in an interpreter that has these packages from PyPI.

    Ends the test as skipped if there is none. Tests with other packages need
    another name.
    """
    if sys.executable.startswith(FOLDER):
        return
    try:
        programs = python_with(name, *packages)
    except Missing as missing:
        say_skipped(missing)
        sys.exit(0)
    python = os.path.join(programs, "python")
    os.execv(python, [python, *sys.argv])


def node_modules(*packages):
    """The folder of these packages from npm. Raises Missing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Missing("no node and npm")
    folder = os.path.join(FOLDER, "node")
    stamp = os.path.join(folder, "installed")
    wanted = "\n".join(packages)
    if not installed(stamp, wanted):
        os.makedirs(folder, exist_ok=True)
        install(
            f"{packages[0]} from npm",
            ["npm", "install", "--no-audit", "--no-fund", "--prefix", folder]
            + list(packages),
        )
        mark_installed(stamp, wanted)
    return os.path.join(folder, "node_modules")


def go_tools(**modules):
    """Paths of programs built from Go modules, {name: path}. Raises Missing."""
    go = shutil.which("go")
    if go is None:
        raise Missing("no go")
    folder = os.path.join(FOLDER, "go")
    tools = {name: os.path.join(folder, name) for name in modules}
    for name, module in modules.items():
        if not os.path.exists(tools[name]):
            install(
                f"{module} from the Go module proxy",
                [go, "install", module],
                env={**os.environ, "GOBIN": folder, "GOFLAGS": ""},
            )
    return tools
