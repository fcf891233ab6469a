# SPDX-License-Identifier: Apache-2.0
"""Fixtures and pytest hooks that all tests share."""

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

COMPILED = 10
SCALED = pytest.StashKey[bool]()
"""The key under which a test stores True once its time limit is scaled."""

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
"""Tests that need a recent torch. Each row has the first torch version that passes the tests, a
pattern of their names, and the reason for skipping them with an older torch."""

os.environ.setdefault("CPD_CHECK", "sync")  # calls on CUDA tensors raise their own errors
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no process pool that imports torch


def pytest_configure(config: pytest.Config) -> None:
    # This process ignores Ctrl-C if its parent does, as many CI runners and shells do for `COMMAND
    # &`. Child processes would inherit that. The next line restores Python's handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        folders = [str(Path(__file__).with_name(name)) for name in ("ranks", "cases", "oracles")]
        before = os.environ.get("PYTHONPATH")  # programs of the tests import their helpers, too
        os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [before])])
        forked.prepare()
        patience.slowness()  # for all workers


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Chooses the cases of the quick tier, scales time limits, and skips tests that need a newer
    torch.

    The mark `few(word, of)` concerns the cases of a test whose names contain `word`. The first case
    and about one in `of` others, chosen by a hash of the name, stay in the quick tier. The rest are
    marked `exhaustive`. If a CPU emulates CUDA, every test has `few("", 4)`. About one in COMPILED
    of the cases named `compiled…` stays quick, because tracing takes long.

    Time limits are for an idle machine. This function scales the limit of pyproject.toml for tests
    without a `timeout` mark. `pytest_runtest_protocol` scales the limit of a mark when the test
    begins.
    """
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
    """Scales the limit of a test's `timeout` mark by the machine's present slowness, because other
    work may have begun since the tests were collected.

    At the limit, pytest-timeout interrupts the test, which needs the GIL. At twice the limit, the
    process prints the stacks of its threads and exits, because a thread may never release the GIL.
    """
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
    """Runs a test on each front end of the operations. The CUDA front end is skipped without a GPU,
    or fails where a GPU is required."""
    return FRONT_ENDS[request.param]()


@pytest.fixture
def gpu() -> None:
    require_gpu()


@pytest.fixture
def two_gpus(gpu: None) -> None:
    """Skips the test on a machine with one GPU."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU, not two")
