# SPDX-License-Identifier: Apache-2.0
"""Adds to a wheel its list of materials, CycloneDX 1.6, as dist-info/sboms/cpd.cdx.json (PEP 770):
the package, what it requires, what was compiled in, and each library's hash. The same wheel gives
the same list: the list's date is SOURCE_DATE_EPOCH, and its serial number is a hash of its content.

    python .dev/sbom.py build/wheel/cpd-….whl
"""

from __future__ import annotations

import email
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

OPENMP = "cpd/openmp/libgomp.so.1"
CUDA = "cpd/libcpd_cuda.so"


def component(name: str, version: str | None, licence: str, **more: object) -> Component:
    return Component(name=name, version=version, licenses=[_licence(licence)], **more)


def _licence(text: str) -> object:
    return LicenseFactory().make_from_string(text)


def package(name: str, version: str | None, licence: str, **more: object) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    return component(name, version, licence, purl=purl, **more)


def required(requirement: str) -> Component:
    """Returns a package that CPD requires, without a version: the installer chooses the version."""
    name = re.split(r"[^\w.-]", requirement)[0]
    scope = ComponentScope.OPTIONAL if "extra ==" in requirement else ComponentScope.REQUIRED
    purl = PackageURL("pypi", name=name.lower())
    return Component(name=name, scope=scope, purl=purl, description=requirement)


def compiled_in(wheel: zipfile.ZipFile) -> list[Component]:
    """Returns the third-party code in the wheel: code that was compiled into CPD's libraries, and
    libraries of others."""
    found = [package("pybind11", importlib.metadata.version("pybind11"), "BSD-3-Clause")]
    names = set(wheel.namelist())
    if OPENMP in names:
        gcc = _printed([os.environ.get("CXX", "g++"), "-dumpfullversion"])
        exception = "GPL-3.0-or-later WITH GCC-exception-3.1"
        found.append(component("libgomp", gcc, exception, hashes=[_hash(wheel, OPENMP)]))
    if CUDA in names:
        said = _printed([os.environ.get("CUDACXX", "nvcc"), "--version"])
        version = re.search(r"release ([\d.]+)", said)
        found.append(component("cudart_static", version and version[1], "LicenseRef-NVIDIA-CUDA"))
    return found


def _printed(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def libraries(wheel: zipfile.ZipFile) -> list[Component]:
    """Returns the wheel's own libraries."""
    names = [name for name in sorted(wheel.namelist()) if name.endswith(".so")]
    return [
        Component(name=name, type=ComponentType.FILE, hashes=[_hash(wheel, name)]) for name in names
    ]


def _hash(wheel: zipfile.ZipFile, name: str) -> HashType:
    digest = hashlib.sha256(wheel.read(name)).hexdigest()
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def materials(wheel: zipfile.ZipFile, dist_info: str) -> str:
    about = email.message_from_bytes(wheel.read(f"{dist_info}/METADATA"))
    bom = Bom(version=1)
    itself = package("cpd", about["Version"], about["License-Expression"], bom_ref="cpd")
    bom.metadata.component = itself
    bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    inside = [*compiled_in(wheel), *libraries(wheel)]
    others = [*inside, *map(required, about.get_all("Requires-Dist", []))]
    for number, other in enumerate(others):
        other.bom_ref.value = f"{number}-{other.name}"
        bom.components.add(other)
    bom.register_dependency(itself, others)
    content = "".join(sorted(wheel.read(f"{dist_info}/RECORD").decode()))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, content)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def main(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as wheel:
        (dist_info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
        wheel.writestr(f"{dist_info}/sboms/cpd.cdx.json", materials(wheel, dist_info) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
