# SPDX-License-Identifier: Apache-2.0
"""One thread of torch in this folder: quick beside other processes."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
