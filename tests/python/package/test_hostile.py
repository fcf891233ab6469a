# SPDX-License-Identifier: Apache-2.0
"""Calls every public callable with wrong objects for each argument.

Each call must raise a TypeError or ValueError whose message is a sentence. Missing memory and other
documented errors of the machine are allowed. No call may raise an internal error or leak memory.
"""

from __future__ import annotations

import warnings
import zlib

import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
import hostile  # noqa: E402
from heap import growth, has_mallinfo2  # noqa: E402

SHARE = 60
"""The quick tier makes about one in SHARE of the calls with wrong objects; `--all` makes all."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):

    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def complaints(calls):
    found = []
    for target, parameter, what in calls:
        try:
            hostile.run(target, parameter, what)
        except Exception as error:
            wrong = hostile.complaint(error)
            if wrong:
                said = f"{type(error).__name__} at {hostile.where(error)}: {str(error)[:200]}"
                found.append(f"{target.name}({parameter.name}={what}): {wrong}: {said}")
    return found


def is_sampled(target, parameter, what) -> bool:
    return zlib.crc32(f"{target.name} {parameter.name} {what}".encode()) % SHARE == 0


def test_the_list_of_callables_is_whole():
    names = {target.name for target in hostile.targets()}
    assert len(names) > 150
    for name in ("cpd.cast", "cpd.restore", "cpd.Recipe.replace", "cpd.functional.lstm"):
        assert name in names
    assert len(hostile.WRONG) >= 40


def test_wrong_arguments_of_a_sample():
    assert not complaints(call for call in hostile.calls() if is_sampled(*call))


@pytest.mark.exhaustive
def test_wrong_arguments_of_all():
    assert not complaints(hostile.calls())


@pytest.mark.parametrize(
    "call",
    [
        lambda: cpd.restore(3),
        lambda: cpd.Recipe(3),
        lambda: cpd.cast(3, "e4m3"),
        lambda: cpd.Format("\ud800"),
        lambda: cpd.Scaled("nvfp4").bits_per_value("ab"),
    ],
)
@pytest.mark.parametrize("calls", [4_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
@pytest.mark.skipif(not has_mallinfo2(), reason="this C library has no mallinfo2")
def test_wrong_calls_keep_no_memory(call, calls):
    def run():
        with pytest.raises((TypeError, ValueError)):
            call()

    allocated, blocks = growth(run, calls)
    assert allocated <= 16 * 1024
    assert blocks <= 500


def test_annotations_of_unions():
    from cpd.numeric.checked import checked

    @checked
    def function(number: int | None, name: str = "", *rest: int, **more: float) -> None:
        pass

    function(None, "a", 1, more=2.0)
    for wrong, message in (
        (("3",), "number must be an int or None, got str"),
        ((True,), "number must be an int or None, got bool"),
        ((3, 4), "name must be a str, got int"),
    ):
        with pytest.raises(TypeError, match=message):
            function(*wrong)
    with pytest.raises(ValueError, match="name must be text that UTF-8 can hold"):
        function(3, name="\ud800")
