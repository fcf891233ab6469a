# SPDX-License-Identifier: Apache-2.0
"""Runs the tests and benchmarks of `./dev gpu` in stages, in this tree or from an archive.

An archive serves a machine that has a GPU and torch, but no compiler, CMake or package index.

    gpu.py run [STAGE…]     runs the stages cpp, python, memcheck, racecheck, bench; default: all
    gpu.py pack ARCHIVE     packs libraries, test programs, tests and the packages of pytest
    gpu.py from ARCHIVE [STAGE…]    unpacks the archive into build/gpu and runs the stages there

A stage is ended after 8 minutes. out/gpu/<device>.json gets a line for each stage and the rows of
the benchmarks. Logs are written to the same folder; $OUT names another folder for both. With
CPD_GPU_TRIAL=1 the stages run without a GPU: GPU tests are skipped, and the benchmarks run on the
CPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "build/release"
LIMIT = 480
"""Limit of a stage in seconds."""
AT_ONCE = min(8, os.cpu_count() or 1)
"""The number of programs that run at the same time, and of processes for the Python tests."""
STAGES = ("cpp", "python", "memcheck", "racecheck", "bench")
TRIAL = os.environ.get("CPD_GPU_TRIAL") == "1"

# The packages that pytest and the tests import, except numpy and torch, which a machine with a GPU
# has.
WHEELS = (
    "execnet", "gmpy2", "hypothesis", "iniconfig", "joblib", "ml_dtypes", "packaging", "pluggy",
    "psutil", "pygments", "pytest", "pytest-timeout", "pytest-xdist", "rich", "markdown-it-py",
    "mdurl", "safetensors", "sortedcontainers", "tomli_w",
)  # fmt: skip


# ---- the stages -------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    made = {**os.environ, "CPD_TEST_BACKENDS": "cuda"}
    if not TRIAL:
        made["CPD_REQUIRE_GPU"] = "1"
    if (ROOT / "build/site").exists():  # unpacked
        made["PYTHONPATH"] = os.pathsep.join(
            str(ROOT / p) for p in ("build/site", "build/packages")
        )
        made["LD_LIBRARY_PATH"] = f"{RELEASE / 'lib'}:{made.get('LD_LIBRARY_PATH', '')}"
    return made


def names() -> list[str]:
    """Returns the names of the programs whose tests run on every device."""
    header = '#include "tests/testing/devices.h"'
    return [
        f"test_{source.parent.name}_{source.stem.removeprefix('test_')}"
        for source in sorted((ROOT / "tests").glob("*/test_*.cpp"))
        if header in source.read_text()
    ]


def programs() -> list[Path]:
    """Returns the test programs for GPUs that exist. In an unpacked archive, which has no sources
    that name these programs, returns all test programs."""
    tests = RELEASE / "tests"
    there = [tests / name for name in names()] or sorted(tests.glob("test_*"))
    return [program for program in there if program.exists()]


def python() -> str:
    own = ROOT / "build/venv/bin/python"
    return str(own) if own.exists() else sys.executable


def sanitizer(tool: str) -> list[str] | None:
    """Returns the command of compute-sanitizer with this tool; None if it is not installed."""
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return [found, "--tool", tool, "--error-exitcode", "9"] if Path(found).exists() else None


def commands(stage: str, folder: Path) -> list[list[str]] | str:
    """Returns the commands of a stage of `./dev gpu`, or the reason why the stage runs none."""
    if stage == "cpp":
        return [[str(program)] for program in programs()] or "no test program was built"
    if stage == "python":
        return [
            [
                python(),
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-n",
                str(AT_ONCE),
                "-m",
                "gpu",
                "tests/python",
            ]
        ]
    if stage == "bench":
        options = ["--device", "cpu", "--small", "--repeats", "1"] if TRIAL else []
        out = str(folder / "bench.json")
        return [[python(), "benchmarks/gpu.py", "--out", out, *options]]
    tool = sanitizer(stage)
    if tool is None:
        return "compute-sanitizer is not installed"
    return [[*tool, str(program)] for program in programs() if "gemm" not in program.name]


def run_stage(stage: str, folder: Path) -> dict[str, object]:
    found = commands(stage, folder)
    if isinstance(found, str):
        return {"stage": stage, "result": f"skipped: {found}"}
    begin = time.monotonic()
    logs = [folder / f"{stage}-{number}.log" for number in range(len(found))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(
            pool.map(lambda each: run_command(*each, begin), zip(found, logs, strict=True))
        )
    with (folder / f"{stage}.log").open("w") as log:
        for part in logs:
            log.write(part.read_text(errors="replace"))
            part.unlink()
    bad = [result for result in results if result != "passed"]
    result = bad[0] if bad else "passed"
    return {"stage": stage, "result": result, "seconds": round(time.monotonic() - begin, 1)}


def run_command(command: list[str], log: Path, begin: float) -> str:
    """Runs a command with the rest of the stage's time limit. Returns "passed", or why it did not
    pass."""
    left = LIMIT - (time.monotonic() - begin)
    with log.open("w") as to:
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment(), timeout=max(1.0, left), stdout=to,
                stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"ended after {LIMIT} s: {Path(command[-1]).name}"
    name = Path(command[-1]).name
    return "passed" if done.returncode == 0 else f"failed: {name}, status {done.returncode}"


def device() -> str:
    """Returns the name of the GPU, in a form that can be a file name."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, env=environment())
    name = done.stdout.strip()
    if not name and not TRIAL:
        sys.exit(f"gpu: torch sees no CUDA device {done.stderr.strip()[-300:]}")
    return "-".join(name.lower().split()) or "no-gpu"


def run(stages: list[str]) -> int:
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown:
        sys.exit(f"gpu: a stage must be one of {', '.join(STAGES)}, got {unknown[0]}")
    name = device()
    out = Path(os.environ.get("OUT") or ROOT / "out/gpu")
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.json"
    found = json.loads(file.read_text()) if file.exists() else {"device": name, "stages": {}}
    for stage in stages or STAGES:
        row = run_stage(stage, out)
        print(f"[gpu] {stage}: {row['result']} ({row.get('seconds', 0)} s)", flush=True)
        found["stages"][stage] = row
        if stage == "bench" and (out / "bench.json").exists():
            found["rows"] = json.loads((out / "bench.json").read_text())["rows"]
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    failed = [
        s for s, row in found["stages"].items() if not row["result"].startswith(("pass", "skip"))
    ]
    print(f"[gpu] {file}")
    return int(bool(failed))


# ---- the archive ------------------------------------------------------------------------------


def libraries() -> Iterator[Path]:
    """Yields the libraries that the test programs load, except the C and C++ libraries of the
    system."""
    lines = "".join(
        subprocess.run(["ldd", p], capture_output=True, text=True, check=True).stdout
        for p in programs()
    ).splitlines()
    paths = {line.split("=> ")[1].split(" (")[0] for line in lines if "=> /" in line}
    system = ("libc.so", "libm.so", "libpthread", "libdl.so", "librt.so", "ld-linux")
    yield from (Path(path) for path in sorted(paths) if not Path(path).name.startswith(system))
    yield from (RELEASE / "lib").glob("libcpd_*.so")


def contents() -> Iterator[tuple[Path, str]]:
    """Yields the files to pack for a machine with a GPU, each with its name in the archive."""
    for program in programs():
        yield program, f"build/release/tests/{program.name}"
    for library in libraries():
        yield library, f"build/release/lib/{library.name}"
    package = next((ROOT / "build/venv/lib").glob("python*/site-packages/cpd"))
    (entries,) = package.parent.glob("cpd_lab-*.dist-info")
    for folder in (ROOT / "python/cpd", package, ROOT / "python/cpd_lab", entries):
        for file in files(folder):
            yield file, f"build/site/{folder.name}/{file.relative_to(folder)}"
    for folder in ("tests/python", "tests/golden", "tests/rtl", "tests/testing", "benchmarks"):
        for file in files(ROOT / folder):
            yield file, str(file.relative_to(ROOT))
    for file in ("README.md", "pyproject.toml", "kernels/cuda/README.md"):
        yield ROOT / file, file


def files(folder: Path) -> Iterator[Path]:
    yield from (
        f for f in sorted(folder.rglob("*")) if f.is_file() and "__pycache__" not in f.parts
    )


def pack(archive: Path) -> int:
    if not (RELEASE / "lib/libcpd_cuda.so").exists() and not TRIAL:
        sys.exit("gpu: build/release has no CUDA library: CPD_CUDA=ON ./dev gpu --pack builds it")
    packages = ROOT / "build/gpu-packages"
    shutil.rmtree(packages, ignore_errors=True)
    listed = json.loads(_output(python(), "-m", "pip", "list", "--format", "json"))
    versions = {p["name"].lower().replace("_", "-"): p["version"] for p in listed}
    wanted = [
        f"{n}=={versions[n]}" for w in WHEELS if (n := w.lower().replace("_", "-")) in versions
    ]
    _output(python(), "-m", "pip", "install", "--no-deps", "--target", str(packages), *wanted)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=3) as tar:
        for file, name in contents():
            tar.add(file.resolve(), name)
        for file in files(packages):
            tar.add(file, f"build/packages/{file.relative_to(packages)}")
    size = archive.stat().st_size / 2**20
    print(
        f"[gpu] {archive}: {size:.1f} MiB, for Python {sys.version_info[0]}.{sys.version_info[1]}"
    )
    return int(size > 60)


def unpack_and_run(archive: Path, stages: list[str]) -> int:
    to = ROOT / "build/gpu"
    stamp = to / "stamp"
    mark = f"{archive.stat().st_size} {archive.stat().st_mtime_ns}"
    if not stamp.exists() or stamp.read_text() != mark:
        shutil.rmtree(to, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(to, filter="data")
        stamp.write_text(mark)
    module = next((to / "build/site/cpd").glob("_core*.so"))
    made_for = module.name.split("-")[1]
    if made_for != f"{sys.version_info[0]}{sys.version_info[1]}":
        sys.exit(
            f"gpu: the archive is for Python {made_for[0]}.{made_for[1:]}, this is {sys.version}"
        )
    out = os.environ.get("OUT") or str(ROOT / "out/gpu")
    command = [sys.executable, str(to / "tests/testing/gpu.py"), "run", *stages]
    return subprocess.run(command, env={**os.environ, "OUT": out}, check=False).returncode


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(words: list[str]) -> int:
    match words:
        case ["run", *stages]:
            return run(stages)
        case ["pack", archive]:
            return pack(Path(archive))
        case ["from", archive, *stages]:
            return unpack_and_run(Path(archive).resolve(), stages)
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
