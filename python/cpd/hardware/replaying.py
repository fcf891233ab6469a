# SPDX-License-Identifier: Apache-2.0
"""`replay`: compares published dot products of a matrix unit with an accumulator's."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd.numeric.accumulator import (
    Accumulator,
    AccumulatorLike,
    Unit,
    as_accumulator,
    as_unit,
    unit_fields,
)
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format, as_format
from cpd.ops import cast, gemm

F32 = npt.NDArray[np.float32]

_SHOWN = 5
_KINDS = {"fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "E4M3": "e4m3fn", "E5M2": "e5m2"}
"""Maps KIND, the first part of the names of a file's arrays, to the format of the operands."""
_LIKE = {"a2": "a100", "h200": "h100", "l40s": "ada"}
"""Maps a GPU to another GPU that has the same matrix unit."""


@dataclass(frozen=True)
class Replay:
    """The comparison of one set of dot products in a file. Any NaN equals any other NaN.

    Attributes:
        name: the formats of the set's operands and results, such as `fp16 fp32`.
        accumulator: the accumulator that was compared.
        adds_c: whether the accumulator added the addends.
        matches: the number of results in which file and accumulator are equal.
        total: the number of results.
        first: the first results that differ, at most five: the index of the dot product in its
            set, the published result, and the accumulator's.
        mutations: a dict from each changed rule to the number of results that then differ from the
            published results. Empty unless requested.
    """

    name: str
    accumulator: Accumulator
    adds_c: bool
    matches: int
    total: int
    first: tuple[tuple[int, float, float], ...]
    mutations: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Set:
    """A set of n dot products of k terms. Operands have shape (n, k), addends and results (n,)."""

    name: str
    operands: tuple[Format, Format]
    output: str
    a: F32
    b: F32
    c: F32
    results: F32
    unit: Accumulator | None
    """The accumulator that computed the results, if the file's name or first line names it."""
    adds_c: bool = True


@checked
def replay(
    path: str | Path,
    accumulator: AccumulatorLike | None = None,
    *,
    operands: str | None = None,
    result: str | None = None,
    adds_c: bool | None = None,
    mutations: bool = False,
) -> list[Replay]:
    """Compares the dot products in a file with an accumulator's, bit by bit.

    Code in a file is never executed.

    Args:
        path: the file, in one of two forms. `.npz` has arrays `KIND_a`, `KIND_b` (n x k), `KIND_c`,
            `KIND_d_fp32` and `KIND_d_fp16` (n x 1) of binary32 patterns (uint32). KIND is fp16,
            bf16, tf32, E4M3 or E5M2. `.csv` and `.jsonl` files are those that
            `cpd.hardware.Vectors` writes, for the operations `dot` and `block_fma`.
        accumulator: the accumulator. For a GPU's unit, given by name, each set of dot products
            (one KIND and result format) selects the unit's formats. Default None: the unit that the
            file's name gives (`H100.npz`), or the accumulator in the file's head.
        operands: the format of the operands of the sets to compare (`E4M3` or `e4m3fn`); default
            None: all sets.
        result: the format of the results of the sets to compare (`fp32` or `fp16`); default None:
            all sets.
        adds_c: whether the results include the addends. Default None: True, except for FP8 operands
            with fp32 results of H100 and H200, which are products without addends.
        mutations: whether to count also the results that differ under changed rules: one fraction
            bit more or less, a block of twice or half the size, the other rounding. Default False.

    Returns:
        One `Replay` for each set.

    Raises:
        ValueError: if the file does not have dot products in one of these forms, or no set that
            fits the arguments.
        OSError: if the file cannot be read.

    >>> import tempfile
    >>> from cpd.hardware import make_vectors
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/unit.csv"
    ...     made = make_vectors("block_fma", accumulator="v100", random=100)
    ...     written = made.write(path, "csv")
    ...     as_v100, as_a100 = replay(path), replay(path, "a100")
    >>> as_v100[0].matches == as_v100[0].total
    True
    >>> as_a100[0].matches < as_a100[0].total
    True
    """
    batches = [
        batch
        for batch in _sets(Path(path))
        if result in (None, batch.output)
        and operands in (None, batch.name.split(" ", 1)[0], str(batch.operands[0]))
    ]
    pairs = [(batch, _accumulator(batch, accumulator)) for batch in batches]
    if accumulator is not None and not _is_preset(accumulator):
        pairs = [(batch, unit) for batch, unit in pairs if unit.format == as_format(batch.output)]
    if not pairs:
        asked = [str(x) for x in (operands, result, accumulator) if x is not None]
        raise ValueError(
            f"{path} holds no dot products" + (f" of {', '.join(asked)}" * bool(asked))
        )
    return [_replayed(batch, unit, adds_c, mutations) for batch, unit in pairs]


def _replayed(batch: _Set, unit: Accumulator, adds_c: bool | None, mutations: bool) -> Replay:
    adds_c = batch.adds_c if adds_c is None else adds_c
    c = cast(batch.c, unit.format) if adds_c else np.zeros_like(batch.c)
    results = _run(batch, c, unit)
    differ = np.flatnonzero(_differing(results, batch.results))
    first = tuple((int(i), float(batch.results[i]), float(results[i])) for i in differ[:_SHOWN])
    counts = {}
    rule = as_unit(unit)
    if mutations and rule is not None:
        for name, variant in _changed(rule):
            counts[name] = int(np.count_nonzero(_differing(_run(batch, c, variant), batch.results)))
    total = len(batch.results)
    return Replay(batch.name, unit, adds_c, total - len(differ), total, first, counts)


def _run(batch: _Set, c: F32, unit: Accumulator) -> F32:
    """Computes the n dot products of `batch`, with the addends `c`, in the accumulator `unit`."""
    result: F32 = gemm(batch.a[:, None, :], batch.b[:, :, None], unit, c[:, None, None])
    return result[:, 0, 0]


def _differing(x: F32, y: F32) -> npt.NDArray[np.bool_]:
    both_nan = np.isnan(x) & np.isnan(y)
    different: npt.NDArray[np.bool_] = (x.view(np.uint32) != y.view(np.uint32)) & ~both_nan
    return different


def _changed(unit: Unit) -> Iterator[tuple[str, Accumulator]]:
    """Yields changed matrix units with their names; each differs from `unit` in one property."""
    other_rounding = "toward_zero" if unit.sum_rounding == "nearest_even" else "nearest_even"
    changes: dict[str, dict[str, Any]] = {
        "F - 1": {"fraction_bits": unit.fraction_bits - 1},
        "F + 1": {"fraction_bits": unit.fraction_bits + 1},
        "twice the block": {"block": 2 * unit.block},
        "half the block": {"block": unit.block // 2},
        other_rounding: {"sum_rounding": other_rounding},
    }
    if unit.group:
        changes["k ascending"] = {"group": 0, "stride": 4, "take": 2}
    for name, change in changes.items():
        fields = unit_fields(unit) | change
        fields["promote"] = math.lcm(fields["promote"], fields["block"]) if fields["promote"] else 0
        try:
            yield name, Accumulator(unit.format, **fields)
        except ValueError:
            continue


# ---- accumulators --------------------------------------------------------------------------------


def _is_preset(acc: Any) -> bool:
    return isinstance(acc, str) and acc.lower() in Accumulator.named()


def _accumulator(batch: _Set, acc: AccumulatorLike | None) -> Accumulator:
    if acc is None:
        if batch.unit is None:
            raise ValueError(
                f"no unit is known for {batch.name} of this file: name an accumulator, such as "
                "'h100-fp16'"
            )
        return batch.unit
    if isinstance(acc, str) and _is_preset(acc):
        a, b = batch.operands
        return Accumulator(batch.output, scheme=acc, a=a, b=b)
    return as_accumulator(acc)


def _unit_of(gpu: str, kind: str, output: str) -> str:
    """Returns the name that CPD would give a GPU's accumulator; CPD may not have this one."""
    gpu = _LIKE.get(gpu, gpu)
    if kind in ("E4M3", "E5M2"):
        return "hopper-mma-fp8" if (gpu, output) == ("h100", "fp16") else f"{gpu}-fp8"
    return gpu if kind == "fp16" and gpu in ("v100", "a100") else f"{gpu}-{kind}"


# ---- files ---------------------------------------------------------------------------------------


def _sets(path: Path) -> Iterator[_Set]:
    if path.suffix == ".npz":
        yield from _published(path)
    else:
        yield _of_vectors(path)


def _published(path: Path) -> Iterator[_Set]:
    arrays = _load(path)
    gpu = path.stem.split("-")[0].lower()
    for name in sorted(arrays):
        kind, is_result, output = name.partition("_d_")
        if not is_result or kind not in _KINDS or output not in ("fp32", "fp16"):
            continue
        a, b, c, results = (
            _patterns(path, arrays, f"{kind}_{part}") for part in ("a", "b", "c", f"d_{output}")
        )
        if a.shape != b.shape or {c.shape, results.shape} != {(len(a), 1)}:
            shapes = ", ".join(str(x.shape) for x in (a, b, c, results))
            raise ValueError(f"{path}: {kind}'s arrays must be n x k and n x 1, got {shapes}")
        f = as_format(_KINDS[kind])
        preset = _unit_of(gpu, kind, output)
        known = preset in Accumulator.named()
        unit = Accumulator(output, scheme=preset, a=f, b=f) if known else None
        holds_c = (_LIKE.get(gpu, gpu), preset, output) != ("h100", "h100-fp8", "fp32")
        label = f"{kind} {output}"
        yield _Set(label, (f, f), output, a, b, c[:, 0], results[:, 0], unit, holds_c)


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files if "_" in name}
    except (ValueError, EOFError, MemoryError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise ValueError(f"{path} is not a .npz archive of arrays: {error}") from error


def _patterns(path: Path, arrays: dict[str, npt.NDArray[Any]], name: str) -> F32:
    x = arrays.get(name)
    if x is None:
        raise ValueError(f"{path} lacks {name}")
    if x.dtype != np.uint32 or x.ndim != 2:
        raise ValueError(f"{path}: {name} must be n x k of uint32, got {x.ndim}-d {x.dtype}")
    return np.ascontiguousarray(x).view(np.float32)


def _of_vectors(path: Path) -> _Set:
    """Returns the set of dot products in a file that `cpd vectors` has written."""
    from cpd.hardware.vectors.files import File
    from cpd.hardware.vectors.making import rule_of
    from cpd.hardware.vectors.sums import SumRule, as_binary32
    from cpd.hardware.vectors.values import values_of

    file = File(path)
    rule = rule_of(file.head or {})
    plain = ("a", "b", "c")
    if not isinstance(rule, SumRule) or tuple(field.name for field in rule.inputs) != plain:
        raise ValueError(f"{path} must hold sums of products a * b + c, without scales or draws")
    batches = list(file.batches())
    columns = {
        name: np.concatenate([batch[name] for batch in batches]) for name in (*plain, "result")
    }
    formats = dict(zip(plain, rule.formats, strict=False)) | {"result": rule.result}
    values = {}
    for name, column in columns.items():
        fixed = rule.fixed
        if fixed is None or name in "ab" or (name == "result" and not rule.has_integer_result):
            values[name] = values_of(formats[name], column.astype(np.uint32))
            continue
        values[name], inexact = as_binary32(fixed, column)
        if name == "c" and inexact.any():
            raise ValueError(f"{path}: a replay takes c from binary32, which has not all of these")
    n = len(values["result"])
    a, b = (values[name].reshape(n, rule.length) for name in ("a", "b"))
    return _Set(
        name=f"{rule.formats[0]} {rule.result}",
        operands=(rule.formats[0], rule.formats[1]),
        output=str(rule.result),
        a=a,
        b=b,
        c=values["c"],
        results=values["result"],
        unit=rule.accumulator,
    )
