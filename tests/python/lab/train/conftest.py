# SPDX-License-Identifier: Apache-2.0
"""Limits torch to one thread in the tests of this folder, as trainings do. With one thread, tests
stay fast while other test processes use the other CPUs."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
