# SPDX-License-Identifier: Apache-2.0
"""Loads libcpd_torch, which has the operators torch.ops.cpd.*."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch

from cpd import _core

OLDEST = (2, 11)
"""The oldest version of torch with a stable ABI that is sufficient for the operators."""


def _load() -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST:
        raise ImportError(
            f"cpd takes tensors of torch {OLDEST[0]}.{OLDEST[1]} or newer, got {torch.__version__}"
        )
    library = Path(_core.__file__).with_name("libcpd_torch.so")
    if not library.exists():
        raise ImportError(
            "this cpd was built without torch, so it takes NumPy arrays only; to build it again "
            f"with this torch: {_command()}"
        )
    torch.ops.load_library(library)  # type: ignore[no-untyped-call]


def _command() -> str:
    """Returns the shell command that builds cpd with the operators, for an error message."""
    return (
        "pip install scikit-build-core pybind11 pybind11-stubgen && "
        f"pip install --no-build-isolation --no-deps --force-reinstall {_source()}"
    )


def _source() -> str:
    """Returns the source folder from which pip installed cpd, if pip recorded one."""
    try:
        noted = metadata.distribution("cpd").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        noted = None
    address = urlsplit(json.loads(noted)["url"]) if noted else None
    if address is None or address.scheme != "file" or address.path.endswith(".whl"):
        return "SOURCE_FOLDER_OF_CPD"
    return unquote(address.path)


_load()
ops = torch.ops.cpd
