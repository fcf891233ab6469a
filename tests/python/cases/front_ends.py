# SPDX-License-Identifier: Apache-2.0
"""The front ends of CPD's operations: NumPy, torch, compiled programs and CUDA.

A test writes a call once, on NumPy arrays. A front end converts the arrays to its own kind, runs
the call, and converts the result back. The fixture `front_end` (conftest.py) runs a test on each
front end. `every_front_end` makes parameters from a table of cases.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from by_keywords import with_cast

Array = npt.NDArray[Any]

# Errors that differ in compiled programs. Each entry has the message of an eager call and the text
# of the compiled call's error. The text is dynamo's own, or the library's if only the library sees
# the values. None means that the compiled call raises no error. A compiled program copies its
# arguments, so it cannot see that two arguments overlap. It cuts 64-bit integers to 32 bits before
# they are checked.
DIFFERS: dict[str, str | None] = {
    r"x and y must broadcast together.*\(3, 4\) and \(3, 3\)": "Attempting to broadcast a dim",
    r"random must be 0…2\^24 - 1, got -1…-1": r"integers must be below 2\^random_bits = 16777216",
    r"random must be 0…2\^3 - 1, got 8…8": r"integers must be below 2\^random_bits = 8, got 8",
    r"random must be 0…2\^24 - 1, got 1099511627776": None,
    "out must be x itself or lie apart from it": None,
    r"out must be (x|y) itself": None,
    "out must be y itself": None,
    "out must be codes itself or lie apart from it": None,
    r"codes must have 6 bytes for \(3, 4\) of e2m1": "12 codes of e2m1 take 6 bytes, got 5",
    r"shape must be of fewer than 2\^58 elements": "RuntimeError when making fake tensor call",
    "codes must have 6 bytes": "12 codes of e2m1 take 6 bytes, got 7",
    r"amax must have shape \(4, 1\)": "amax must be 4 contiguous fp32 numbers.*, got 8",
}
Case = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """An operation with its arguments, whose arrays are NumPy's, and the bits that the operation
    must give."""

    operation: Callable[..., Any]
    args: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    expected: Any = None  # an array, or the bit patterns of float32 values

    def __str__(self) -> str:
        words = [str(x) for x in self.args if not hasattr(x, "dtype")]
        return f"{self.operation.__name__} {' '.join(words)} {self.options}"


class FrontEnd:
    """The NumPy front end, which is the base class of the other front ends."""

    name = "numpy"
    few: int | None = None  # the number of similar cases to run; None: all

    def array(self, x: Any) -> Any:
        """Converts an array to this front end's kind, with the same values, type and strides.
        Returns other arguments unchanged."""
        return x

    def numpy(self, y: Any) -> Array:
        assert type(y) is np.ndarray
        return y

    def made(self, call: Call) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        args, options = with_cast(call.operation, call.args, call.options)
        named = {name: self.array(x) for name, x in options.items()}
        return call.operation, tuple(self.array(x) for x in args), named

    def run(self, calls: Sequence[Call]) -> list[Array]:
        made = [self.made(call) for call in calls]
        return [self.numpy(operation(*args, **options)) for operation, args, options in made]

    def __call__(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Array:
        return self.run([Call(operation, args, options)])[0]

    def check(self, calls: Sequence[Call]) -> None:
        """Asserts that every call gives its expected bits."""
        for call, got in zip(calls, self.run(calls), strict=True):
            assert_bits(got, call.expected, f"{self.name}: {call}")

    def some(self, *calls: Callable[[], Any]) -> Sequence[Callable[[], Any]]:
        """Chooses from several calls that must all raise one error. Returns the calls that this
        front end tests; the NumPy front end tests all."""
        return calls

    def tried(self, call: Call) -> Any:
        operation, args, more = self.made(call)
        return operation(*args, **more)

    def refuse(
        self,
        error: type[Exception],
        message: str,
        operation: Callable[..., Any],
        *args: Any,
        **more: Any,
    ) -> None:
        """Asserts that the call raises `error`, and that the error's text contains `message` (a
        regular expression)."""
        with pytest.raises(error, match=message), self.calling():
            self.tried(Call(operation, args, more))

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """Around each call."""
        return contextlib.nullcontext()


class Torch(FrontEnd):
    name = "torch"
    device = "cpu"

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")

    def array(self, x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
        one = tuple(slice(0, 1 if stride == 0 else None) for stride in x.strides)
        if x.size == 0:
            return self.array(np.zeros((), x.dtype)).new_empty(x[one].shape).expand(x.shape)
        values = np.array(x[one], order="C")  # a broadcast dimension is stored once
        if x.dtype == ml_dtypes.bfloat16:
            values = self.torch.from_numpy(values.view(np.int16)).view(self.torch.bfloat16)
        else:
            values = self.torch.from_numpy(values)
        strides = [stride // x.itemsize for stride in x.strides]
        y = self.torch.empty_strided(values.shape, strides, dtype=values.dtype, device=self.device)
        return y.copy_(values).expand(x.shape)

    def numpy(self, y: Any) -> Array:
        assert y.device.type == self.device
        y = y.detach().cpu()
        if y.dtype == self.torch.bfloat16:
            return y.view(self.torch.int16).numpy().view(ml_dtypes.bfloat16)  # type: ignore
        got: Array = y.numpy()
        return got


class Compiled(Torch):
    """The front end of compiled programs. Calls that are run together are compiled as one graph."""

    name = "compiled"
    few = 2

    def compiled(self, call: Callable[..., Any], backend: str = "aot_eager") -> Any:
        self.torch._dynamo.reset()
        return self.torch.compile(call, fullgraph=True, backend=backend)

    def run(self, calls: Sequence[Call]) -> list[Array]:
        made = [self.made(call) for call in calls]
        graph = self.compiled(run_all)
        return [self.numpy(y) for y in graph(made)]

    def some(self, *calls: Callable[[], Any]) -> Sequence[Callable[[], Any]]:
        return calls[:1]

    def tried(self, call: Call) -> Any:
        operation, args, more = self.made(call)
        return self.compiled(operation, "eager")(*args, **more)

    def refuse(
        self,
        error: type[Exception],
        message: str,
        operation: Callable[..., Any],
        *args: Any,
        **more: Any,
    ) -> None:
        """Asserts that the call raises an error. Dynamo wraps errors, so the text may be in any
        error of the chain. `DIFFERS` has the texts that differ from eager mode."""
        wanted = DIFFERS.get(message, message)
        if wanted is None:
            return
        with pytest.raises(Exception) as caught:  # noqa: PT011
            self.tried(Call(operation, args, more))
        texts = list(chain(caught.value))
        assert any(re.search(wanted, text, re.DOTALL) for text in texts), texts


GPU_IS_CPU = os.environ.get("CPD_CUDA_ON_CPU") == "1"
"""True if torch's CUDA device is an emulation on this CPU (tests/testing/cuda_on_cpu)."""

REFUSED = re.compile(r"(is|are) for [\w ]+ on the CPU")
"""The error for CUDA tensors if an operation has no CUDA kernel, as a pattern. The table in
kernels/cuda/README.md has the texts; test_operations_table.py compares them."""


class Cuda(Torch):
    """The CUDA front end. If an operation has no CUDA kernel, it must refuse the call as the table
    of kernels/cuda/README.md says; the test is then skipped."""

    name = "cuda"
    device = "cuda"

    def __init__(self) -> None:
        super().__init__()
        require_gpu()

    def run(self, calls: Sequence[Call]) -> list[Array]:
        with self.calling():
            return super().run(calls)

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            if REFUSED.search(str(error)):
                pytest.skip(f"CUDA tensors: {error}")
            raise


FRONT_ENDS: dict[str, type[FrontEnd]] = {
    "numpy": FrontEnd,
    "torch": Torch,
    "compiled": Compiled,
    "cuda": Cuda,
}
EAGER = ("numpy", "torch")


def run_all(
    made: Sequence[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]],
) -> list[Any]:
    return [operation(*args, **options) for operation, args, options in made]


def chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__


def require_gpu() -> None:
    """Skips the test if there is no CUDA device. With CPD_REQUIRE_GPU=1 the test fails instead."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        return
    if os.environ.get("CPD_REQUIRE_GPU") == "1":
        pytest.fail("CPD_REQUIRE_GPU=1, but torch sees no CUDA device")
    pytest.skip("torch sees no CUDA device")


def require_gpu_itself(why: str) -> None:
    """Skips the test if the CPU emulates CUDA. `why` names the feature that the emulation lacks."""
    require_gpu()
    if GPU_IS_CPU:
        pytest.skip(f"the CPU in a GPU's place has no {why}")


def few_on_cpu(cases: Sequence[Any], first: int) -> Sequence[Any]:
    """Returns all cases. On the CPU emulation of CUDA, returns every fourth case, starting at index
    `first` modulo 4."""
    return cases[first % 4 :: 4] if GPU_IS_CPU else cases


def assert_bits(got: Array, expected: Any, about: str = "") -> None:
    """Asserts that a result has the expected type, shape and bits. A list of bit patterns stands
    for float32 values."""
    if isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, about
        assert got.shape == expected.shape, about
    else:
        assert got.dtype == np.float32, about
        expected = np.array(expected, np.uint32).view(np.float32)
    have, wanted = (
        np.ascontiguousarray(x).reshape(-1).view(f"u{x.itemsize}") for x in (got, expected)
    )
    assert have.size == wanted.size, about
    for i in np.flatnonzero(have != wanted)[:1]:
        pytest.fail(f"{about} at {i}: expected {wanted[i]:0X}, got {have[i]:0X}")


def marked(name: str) -> list[Any]:
    return [pytest.mark.gpu] if name == "cuda" else []


def every_front_end(
    groups: Mapping[str, Sequence[Case]],
    *,
    numpy_only: Collection[Case] = (),
    compiled: Collection[str] | None = None,
) -> Callable[[Any], Any]:
    """Makes pytest parameters of a front end and a list of cases. Eager front ends get each case by
    itself. The compiled and the CUDA front end get all cases of a group as one list. The compiled
    front end compiles the list as one graph.

    If `compiled` is not None, the quick tier compiles only the groups that `compiled` names. The
    exhaustive tier compiles the other groups.
    """
    parameters = []
    for group, cases in groups.items():
        for case in cases:
            words = "-".join(str(word) for word in case)
            for name in EAGER:
                if name == "numpy" or case not in numpy_only:
                    parameters.append(pytest.param(name, [case], id=f"{name}-{words}"))
        shared = [case for case in cases if case not in numpy_only]
        for name in ("compiled", "cuda"):
            marks = marked(name)
            if name == "compiled" and compiled is not None and group not in compiled:
                marks = [pytest.mark.exhaustive]
            parameters.append(pytest.param(name, shared, id=f"{name}-{group}", marks=marks))
    return pytest.mark.parametrize(("front_end", "cases"), parameters, indirect=["front_end"])
