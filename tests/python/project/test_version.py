# SPDX-License-Identifier: Apache-2.0
"""Tests that all files state the same version, and that the lock file has pyproject.toml's pins."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import cpd

ROOT = Path(__file__).parents[3]
LOCKED = ("env", "check", "docs", "wheel")


def test_version_of_the_library_is_that_of_the_package():
    assert cpd.__version__ == version("cpd") == version("cpd-lab")
    lab = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    assert lab["version"] == cpd.__version__
    assert f"cpd[study,torch]=={cpd.__version__}" in lab["dependencies"]


def test_version_of_the_citation_and_the_changelog():
    assert f"\nversion: {cpd.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == cpd.__version__
    assert "Unreleased" not in headings[1:]


def test_lock_file_has_the_pins_with_hashes_and_names_no_index():
    text = (ROOT / "requirements.lock").read_text()
    locked = re.findall(r"^(\S+==\S+)(?: ;.*)? \\\n    --hash=sha256:", text, re.M)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    pins = [pin.replace("_", "-") for name in LOCKED for pin in groups[name]]
    assert len(pins) > 20
    assert not set(pins) - set(locked)
    assert "://" not in text
