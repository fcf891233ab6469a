# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import zlib
from collections import Counter
from collections.abc import Generator
from importlib import metadata, util
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key as STDERR

import forked
import patience
from front_ends import FRONT_ENDS, GPU_IS_CPU, FrontEnd, marked, require_gpu

COMPILED = 5
SCALED = pytest.StashKey[bool]()
"""True once a test's limit of time is scaled."""

SINCE = (
    (
        (2, 12),
        r"python/nn/.*(compil|inductor|export)|test_options\[compiled|beside a text-bf16",
        "converted layers compile, and errors keep their text there, from torch 2.12 on",
    ),
    (
        (2, 13),
        r"test_flex_attention_within_a_counted_step|test_operators_of_higher_order",
        "products within flex attention are counted from torch 2.13 on",
    ),
)
"""The first torch that some tests are for, a pattern of their names, and why."""

os.environ.setdefault("CPD_CHECK", "sync")  # calls on CUDA tensors raise their own errors


def pytest_configure(config: pytest.Config) -> None:
    # As many CI runners and `… &` start it, this process ignores Ctrl-C, and would hand that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        folders = [str(Path(__file__).with_name(name)) for name in ("ranks", "cases", "oracles")]
        before = os.environ.get("PYTHONPATH")  # programs of the tests import their helpers, too
        os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [before])])
        forked.prepare()
        patience.slowness()  # for all workers


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`few(word, of)`: of a test's cases whose names hold the word, the first and about one in so
    many others is quick; they follow no period of front ends and formats. With a CPU in a GPU's
    place that is one in four of every test's. Of compiled programs, most of whose time is
    tracing, one in COMPILED of all tests' cases is quick. The seconds of
    `timeout`, and of pyproject.toml where a test has none, are an idle machine's: those of
    pyproject.toml are scaled here, those of a mark when the test begins."""
    seen: Counter[tuple[str, str]] = Counter()
    version = metadata.version("torch").split(".")[:2] if util.find_spec("torch") else []
    later = [row for row in SINCE if version and tuple(map(int, version)) < row[0]]
    default = None
    if config.getoption("timeout") is None:
        default = patience.scaled(float(config.getini("timeout")))
    for item in items:
        if default is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(default), append=False)
            item.stash[SCALED] = True
        for _, pattern, reason in later:
            if re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.skip(reason=reason))
        for mark in item.iter_markers("slow"):
            item.user_properties.append(("slow", mark.args[0]))  # for tests/testing/summary.py
        few = [mark.args for mark in item.iter_markers("few")]
        if GPU_IS_CPU:
            few.append(("", 4))
        test, _, case = item.nodeid.partition("[")
        if case.startswith("compiled") and zlib.crc32(item.name.encode()) % COMPILED != 0:
            item.add_marker("exhaustive")
        for word, of in few:
            if word not in case:
                continue
            seen[test, word] += 1
            if seen[test, word] > 1 and zlib.crc32(case.encode()) % of != 0:
                item.add_marker("exhaustive")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout reads the mark
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Scales the limit of a test's own mark by the slowness of now: other work may have begun
    since the tests were collected. At the limit pytest-timeout interrupts the test, which needs the
    GIL; at twice the limit the process ends, with where its threads are: one may never give the
    GIL back."""
    limit = item.get_closest_marker("timeout")
    if limit is not None and not item.stash.get(SCALED, False):
        item.add_marker(pytest.mark.timeout(patience.scaled(limit.args[0])), append=False)
        item.stash[SCALED] = True
    if limit := item.get_closest_marker("timeout"):
        stderr = item.config.stash[STDERR]
        faulthandler.dump_traceback_later(2 * limit.args[0], file=stderr, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=[pytest.param(name, marks=marked(name)) for name in FRONT_ENDS])
def front_end(request: pytest.FixtureRequest) -> FrontEnd:
    """Each front end of the operations; CUDA's is skipped without a GPU, or fails where one is
    required."""
    return FRONT_ENDS[request.param]()


@pytest.fixture
def gpu() -> None:
    require_gpu()


@pytest.fixture
def two_gpus(gpu: None) -> None:
    """A skip that says so where there is one GPU alone."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU, not two")
