# SPDX-License-Identifier: Apache-2.0
"""The version that CMake gives the library is the one that pyproject.toml gives the package."""

from importlib.metadata import version

import cpd


def test_version_of_the_library_is_that_of_the_package():
    assert cpd.__version__ == version("cpd")
