# SPDX-License-Identifier: Apache-2.0
"""`cpd env`: prints the facts of the machine and its packages for an error report."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cpd import _core
from cpd.cli import options as opt
from cpd.cli.output import check_writable, json_written

_PACKAGES = (
    "numpy", "ml_dtypes", "safetensors", "scikit-learn", "matplotlib", "zstandard", "mpi4py",
    "torchvision", "torchao", "transformers", "accelerate", "lightning", "wandb", "tensorboard",
)  # fmt: skip
_VARIABLES = ("CPD_", "OMP_", "CUDA_VISIBLE", "CUBLAS_", "NCCL_", "TORCH_", "PYTORCH_")
"""Prefixes of the environment variables that are printed if set."""


def register(commands: opt.Commands) -> None:
    """Adds the command `env`."""
    opt.command(commands, "env", _run, Options)


@dataclass
class Options:
    """Print what to paste into an error report.

    Prints the facts that an error report should have: versions, the processor and its kernels,
    threads, GPUs,
    the optional parts that CPD was built with, and the environment variables that change its
    behavior. Nothing is sent anywhere.
    """

    json: Path | None = opt.json_file()


def _run(options: Options) -> int:
    check_writable(options.json)
    lines = environment()
    if json_written(options.json, lambda: lines):
        return 0
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:{width}}  {value}".rstrip())
    return 0


def environment() -> dict[str, str]:
    """Returns the facts that `cpd env` prints, by name."""
    from cpd.study.processor import cpu_name

    versions = {name: _version(name) for name in _PACKAGES}
    packages = ", ".join(f"{name} {of}" for name, of in versions.items() if of)
    variables = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)]
    return {
        "cpd": _core.__version__,
        "built with": _core.PARTS or "no optional parts",
        "kernels": f"{_core.backend()} (here: {', '.join(_core.backends())})",
        "processor": cpu_name(),
        "system": platform.platform(),
        "python": f"{platform.python_version()}, {platform.python_implementation()}",
        **_torch(),
        "packages": packages,
        "variables": ", ".join(variables) or "none",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _torch() -> dict[str, str]:
    """Returns the version of torch, whether CPD's operators work with it, and the GPUs it finds."""
    if find_spec("torch") is None:
        return {"torch": "not installed: NumPy arrays alone"}
    import torch

    try:
        from cpd._torch import library  # noqa: F401

        operators = "cpd's operators are loaded"
    except ImportError as error:
        operators = str(error)
    cuda = torch.version.cuda or "none"
    return {
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads; {operators}",
        "cuda": f"{cuda}; {_devices(torch)}",
    }


def _devices(torch: Any) -> str:
    if not torch.cuda.is_available():
        return "no device"
    names = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    return ", ".join(f"{device.name} (sm_{device.major}{device.minor})" for device in names)
