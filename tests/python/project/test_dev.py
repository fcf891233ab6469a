# SPDX-License-Identifier: Apache-2.0
"""Tests functions of the script `./dev`. Each is extracted from the script and runs by itself."""

from __future__ import annotations

import fcntl
import os
import re
import select
import subprocess
from pathlib import Path

import pytest

from patience import scaled

ROOT = Path(__file__).parents[3]
DEV = (ROOT / "dev").read_text()


def function(name: str) -> str:
    (body,) = re.findall(rf"^{name}\(\) \{{\n.*?^\}}\n", DEV, re.MULTILINE | re.DOTALL)
    return str(body)


@pytest.mark.parametrize(
    ("said", "wanted", "optimized"),
    [
        ("echo 9.0", "90", "90"),
        ("printf '12.0\\n8.0\\n12.0\\n'", "80;120", "80;120"),
        ("exit 9", "", "90"),  # a driver that does not answer
        (None, "", "90"),
    ],
)
def test_architectures_of_this_machine(
    tmp_path: Path, said: str | None, wanted: str, optimized: str
) -> None:
    if said is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{said}\n")
        tool.chmod(0o755)
    for name in ("bash", "tr", "sort", "paste"):
        found = subprocess.run(["which", name], capture_output=True, text=True, check=True)
        (tmp_path / name).symlink_to(found.stdout.strip())
    names = ("architectures", "unoptimized_cuda", "optimize_cuda")
    program = "".join(map(function, names)) + "unoptimized_cuda; CPD_CUDA=ON unoptimized_cuda; "
    program += 'architectures; optimize_cuda; echo "$CUDAARCHS"; CUDAARCHS=100; architectures'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", program],
        env={k: v for k, v in os.environ.items() if k != "CUDAARCHS"} | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = ["OFF" if wanted else "ON", "OFF", *wanted.split(), optimized, "100"]
    assert (done.returncode, done.stdout.split()) == (0, said), done.stderr


def test_tests_compile_for_one_architecture_and_the_wheel_for_all() -> None:
    """Without a GPU, `./dev test` compiles the kernels without optimization. `./dev test --all`,
    the archive of tests for a GPU's machine, and the wheel have optimized kernels."""
    built = function("build_locked")
    assert "CMAKE_CUDA_ARCHITECTURES=${found:-90}" in built
    assert "CPD_UNOPTIMIZED_CUDA=$(unoptimized_cuda)" in built
    assert "architectures)" not in function("wheel").replace("local architectures=()", "")
    assert "build-dir=build/wheel-release" in function("wheel")
    tests = (ROOT / ".dev/tests.sh").read_text()
    assert "CPD_CUDA=${CPD_CUDA:-ON} build whole" in tests  # the archive for a GPU's machine
    assert "if ((kAll)); then optimize_cuda; fi\n  build whole\n" in tests
    assert "CUDAARCHS" not in (ROOT / ".ci/run").read_text()


def test_the_help_in_80_columns() -> None:
    """The help names every command that `./dev` takes."""
    told = function("help").splitlines()
    assert max(map(len, told)) <= 80
    commands = re.findall(r"^    ([a-z| ]+)\) \"\$command\"", DEV, re.MULTILINE)
    assert commands
    for name in " ".join(commands).split(" | "):
        assert any(re.match(rf"  {name}( |$)", line) for line in told), name


def test_a_build_that_waits_for_another_says_so(tmp_path: Path) -> None:
    program = 'say() { echo "$*"; }; build_locked() { echo built; }\n'
    program += function("lock_build") + function("build") + "build"
    command = ["bash", "-euo", "pipefail", "-c", program]
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert alone.stdout == "built\n"
    lock = tmp_path / "build/lock"
    assert lock.read_text().strip().isdigit()
    with lock.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        holder.write("4711\n")
        holder.flush()
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdout is not None
            said = select.select([waiting.stdout], [], [], scaled(20))[0]
            first = waiting.stdout.readline() if said else ""
            fcntl.flock(holder, fcntl.LOCK_UN)
            rest = waiting.stdout.read()
    assert first == "waiting until process 4711 has built this tree (build/lock)\n"
    assert (waiting.returncode, rest) == (0, "built\n")
    assert lock.read_text() == f"{waiting.pid}\n"


def test_a_revision_is_looked_for_before_anything_is_compiled(tmp_path: Path) -> None:
    """`bench --against` checks the revision before it compiles anything.

    An option in place of the revision is passed to the benchmark program.
    """
    die = 'die() { echo "$1"; exit 2; }; build() { echo built; exit; }\n'
    for words, wanted in (
        ("--against nosuchrevision cast", "'nosuchrevision' is not a revision of this repository"),
        ("--against HEAD cast", "built"),
        ("cast", "built"),
    ):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{die}{function('bench')}bench {words}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert wanted in done.stdout
        assert ("built" in done.stdout) == (done.returncode == 0)
