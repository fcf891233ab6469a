# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests."""

from __future__ import annotations

import pytest

from faces import FACES, Face, marked, require_gpu


@pytest.fixture(params=[pytest.param(name, marks=marked(name)) for name in FACES])
def face(request: pytest.FixtureRequest) -> Face:
    """Each face of the verbs; CUDA's is skipped without a GPU, or fails where one is required."""
    return FACES[request.param]()


@pytest.fixture
def gpu() -> None:
    require_gpu()
