# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests."""

from __future__ import annotations

import signal

import pytest

import forked
from faces import FACES, Face, marked, require_gpu


def pytest_configure(config: pytest.Config) -> None:
    # As many CI runners and `… &` start it, this process ignores Ctrl-C, and would hand that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        forked.prepare()


@pytest.fixture(params=[pytest.param(name, marks=marked(name)) for name in FACES])
def face(request: pytest.FixtureRequest) -> Face:
    """Each face of the verbs; CUDA's is skipped without a GPU, or fails where one is required."""
    return FACES[request.param]()


@pytest.fixture
def gpu() -> None:
    require_gpu()
