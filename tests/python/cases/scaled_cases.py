# SPDX-License-Identifier: Apache-2.0
"""The stored golden vectors of scaled formats from other libraries, as one table.

Each case names the stored arrays and the `cpd.Scaled` that must give them. The table also lists the
values that differ from CPD's, each with a reason. Tests compare the arrays with the oracle and with
the public operations.
"""

from __future__ import annotations

import collections
import fnmatch
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import oracle
import scaled_blocks
import scaled_oracle
from oracle import Spec as Format

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

_ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("CPD_DATA", _ROOT.parent / "shared" / "data")) / "scaling"
REASON = f"no vectors of scaled formats at {DATA} (CPD_DATA names the data folder)"

# Maps the names of formats in this file's cases to the oracle's formats.
FORMATS = {
    "e4m3fn": Format(4, 3, None, "fn"),
    "e5m2": Format(5, 2),
    "e3m2": Format(3, 2, None, "finite"),
    "e2m3": Format(2, 3, None, "finite"),
    "e2m1": Format(2, 1, None, "finite"),
    "e1m6int:bias=1": Format(1, 6, 1, "int"),  # OCP's int8: steps of 2^-6
    "int4": scaled_oracle.integer(4),
    "int8": scaled_oracle.integer(8),
    "sm8": scaled_oracle.signed_magnitude(8),
    "e8m0": scaled_oracle.E8M0,
    "bf16": scaled_oracle.BFLOAT16,
    "fp32": scaled_oracle.BINARY32,
}
ELEMENTS = {
    "e4m3": "e4m3fn",
    "e5m2": "e5m2",
    "e3m2": "e3m2",
    "e2m3": "e2m3",
    "e2m1": "e2m1",
    "int8": "e1m6int:bias=1",
}


def spec_of(arguments: Mapping[str, Any]) -> scaled_oracle.Spec:
    """Converts the arguments of `cpd.Scaled` to the oracle's class for a scaled format, `Spec`."""
    of = {name: arguments[name] for name in arguments}
    for name in ("element", "scale", "tensor_scale"):
        if of.get(name) is not None:
            of[name] = FORMATS[of[name]]
    if isinstance(of.get("block"), str) and "x" in of["block"]:
        rows, columns = (int(n) for n in of["block"].split("x"))
        of["block"] = columns if rows == 1 else (rows, columns)
    return scaled_oracle.Spec(**of)


@dataclass(frozen=True)
class Case:
    """A group of stored arrays that one implementation computed from one input. The arrays are
    named `name.codes`, `name.scale`, …."""

    name: str
    file: str
    source: str
    arguments: Mapping[str, Any]
    axis: int = -1
    rounding: str = "nearest_even"
    apart: bool = False  # True: each index of the first dimension is a separate tensor
    prepare: Callable[[Array], Array] = np.asarray
    about: str = ""  # added to the key if an array is compared a second time

    @property
    def key(self) -> str:
        return f"{self.name}{self.about}"

    @property
    def implementation(self) -> str:
        return self.name.split(".")[0]

    @property
    def element(self) -> Format:
        return FORMATS[self.arguments["element"]]

    @property
    def spec(self) -> scaled_oracle.Spec:
        return spec_of(self.arguments)

    def inputs(self) -> list[Array]:
        """Returns the tensors that are encoded."""
        file = "nvfp4" if self.source == "in.nv_x" else self.file
        x = self.prepare(load(file)[self.source])
        return list(x) if self.apart else [x]

    def arrays(self) -> Arrays:
        """Returns the arrays that another library computed for this case, by kind: codes, …."""
        arrays = load(self.file)
        whats = ("codes", "scale", "scale_inv", "tensor_scale", "dequant", "amax")
        return {w: arrays[f"{self.name}.{w}"] for w in whats if f"{self.name}.{w}" in arrays}


@functools.cache
def load(file: str) -> Arrays:
    with np.load(DATA / f"{file}.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def bfloat16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16)


def bfloat16_bits(x: Array) -> Array:
    return x.view(ml_dtypes.bfloat16)


def without_subnormal_blocks(x: Array) -> Array:
    """Flushes blocks as microxcaling's C++ does: a block is zero if its largest magnitude is below
    2^-126."""
    return np.where(np.abs(x).max(axis=-1, keepdims=True) < 2.0**-126, np.float32(0), x)


def without_small_logarithms(x: Array) -> Array:
    """Flushes blocks as microxcaling's Python does: a block is zero if the logarithm of its largest
    magnitude, in binary32, is below -126."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.where(np.log2(largest) < np.float32(-126), np.float32(0), x)


def every_second(x: Array) -> Array:
    return x[::2]


def cases() -> list[Case]:
    """Returns all cases whose arrays are stored; no case if the data folder does not exist."""
    if not (DATA / "index.json").exists():
        return []
    return [c for c in (*_mx(), *_nvfp4(), *_fp8()) if c.arrays()]


def _mx() -> Iterator[Case]:
    for element, text in ELEMENTS.items():

        def of(name: str, **more: Any) -> Case:
            keys = ("rounding", "prepare", "about")
            own = {k: more.pop(k) for k in keys if k in more}
            return Case(f"{name}.{element}", "mx", "in.mx_x", {"element": text, **more}, **own)  # noqa: B023

        for rule in ("floor", "ceil", "even", "rceil"):
            for version in ("main", "release"):
                yield of(f"torchao_{version}.{rule}", rule=rule, arithmetic="torchao")
            yield of(f"torchao_main.{rule}", rule=rule, about="(exact)")
        yield of("te_mxfp8.rceil", rule="rceil", arithmetic="te")
        roundings = {"nearest": "nearest_away", "even": "nearest_even", "floor": "toward_zero"}
        for round_, rounding in roundings.items():
            for flush in ("", "_flush"):
                python = without_small_logarithms if flush else np.asarray
                cpp = without_subnormal_blocks if flush else np.asarray
                more = {"rounding": rounding, "arithmetic": "microxcaling", "prepare": python}
                yield of(f"microxcaling.{round_}{flush}", **more)
                yield of(f"microxcaling_cpp.{round_}{flush}", rounding=rounding, prepare=cpp)


def _nvfp4() -> Iterator[Case]:
    one = {"element": "e2m1", "block": 16, "scale": "e4m3fn"}
    two = {**one, "tensor_scale": "fp32"}
    te = {**two, "arithmetic": "te"}
    own = {"file": "nvfp4", "source": "in.nv_x", "apart": True}
    yield Case("torchao_nvfp4.two_level", arguments={**two, "arithmetic": "torchao"}, **own)
    yield Case("torchao_nvfp4.one_level", arguments={**one, "arithmetic": "torchao"}, **own)
    yield Case("te_nvfp4.1x16", arguments=te, **own)
    yield Case("te_nvfp4.16x16", arguments={**te, "block": "16x16"}, **own)
    yield Case("te_nvfp4.1x16_rowscaled", arguments={**te, "outer": "row"}, **own)
    for error in ("mae", "mse"):
        for suffix, largest in (("", 256), ("448", 448)):
            more = {**te, "choose": error, "scale_max": largest}
            yield Case(f"te_nvfp4.4over6_{error}{suffix}", arguments=more, **own)
    for sign in ("", "_nosign"):
        name = f"te_nvfp4.1x16_rht{sign}"
        source = f"{name}.rht_bf16"
        yield Case(name, "nvfp4", source, te, apart=True, prepare=bfloat16_bits)


def _fp8() -> Iterator[Case]:
    for element in ("e4m3", "e5m2"):
        of = {"element": ELEMENTS[element], "scale": "fp32"}
        for pow2, rule in (("", "max"), ("_pow2", "max_pow2")):
            of["rule"] = rule
            every = {"file": "fp8", "source": "in.nv_x", "prepare": every_second}
            for shape, block, axis in (
                ("tensor", "tensor", -1),
                ("row", "row", -1),
                ("col", "row", -2),
            ):
                name = f"torchao_float8.{shape}{pow2}.{element}"
                ao = {**of, "block": block, "arithmetic": "torchao"}
                yield Case(name, arguments=ao, axis=axis, apart=True, **every)
            name = f"te_current.tensor{pow2}.{element}"
            te = {**of, "arithmetic": "te"}
            yield Case(name, arguments={**te, "block": "tensor"}, apart=True, **every)
            for block, source in (("1x128", "in.blk_x"), ("128x128", "in.tile_x")):
                for storage, prepare in (("fp32", np.asarray), ("bf16", bfloat16)):
                    name = f"te_block.{block}{pow2}_{storage}.{element}"
                    yield Case(name, "fp8", source, {**te, "block": block}, prepare=prepare)
    of = {"element": "e4m3fn", "scale": "fp32"}
    for block, source, axis in (
        ("1x128", "in.blk_x", -1),
        ("128x128", "in.tile_x", -1),
        ("128x1", "in.tile_x", -2),
    ):
        shape = "1x128" if block == "128x1" else block
        ao = {**of, "block": shape, "arithmetic": "torchao"}
        yield Case(f"torchao_blockwise.{block}.e4m3", "fp8", source, ao, axis)
        yield from _deepgemm(f"{block}", source, {**of, "block": shape}, "e4m3", axis)
    of = {"element": "e2m1", "scale": "fp32", "block": 32}
    yield from _deepgemm("1x32", "in.blk_x", of, "e2m1", -1)


def _deepgemm(
    block: str, source: str, of: Mapping[str, Any], element: str, axis: int
) -> Iterator[Case]:
    for kind, rule in (("fp32", "max"), ("ue8m0", "rceil")):
        arguments = {**of, "rule": rule, "arithmetic": "deepgemm"}
        yield Case(f"deepgemm.{block}_{kind}.{element}", "fp8", source, arguments, axis)


# ---- what differs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The encoding of one tensor x: codes in the shape of x, a decode scale for each block in the
    order of the blocks, outer scales, and decoded binary32 values. An invalid scale is NaN."""

    codes: Array
    scales: Array
    outer: Array
    values: Array


@dataclass(frozen=True)
class Facts:
    """Properties of each element of a case's input, and of the element's block and tensor, as
    arrays of the input's shape. D is the decode scale of the element's block."""

    x: Array
    quotient: Array  # x / D
    largest: Array  # the block's largest magnitude / D
    scale: Array  # D
    inf: Array
    nan: Array
    tensor_inf: Array
    tensor_nan: Array


def facts(case: Case, results: list[Result]) -> Facts:
    found: dict[str, list[Array]] = {f.name: [] for f in fields(Facts)}
    for x, result in zip(case.inputs(), results, strict=True):
        x = x.astype(np.float32)
        block = scaled_blocks.block_indices(x.shape, case.spec.block, case.axis)
        outer = scaled_blocks.block_indices(x.shape, case.spec.outer, case.axis)
        scale = result.scales[block] * (result.outer[outer] if result.outer.size else 1.0)
        largest = np.zeros(result.scales.size)
        np.maximum.at(largest, block, np.abs(x))
        with np.errstate(all="ignore"):
            found["quotient"].append(x.astype(np.float64) / scale)
            found["largest"].append(largest[block] / scale)
        found["x"].append(x)
        found["scale"].append(scale)
        for name, hit in (("inf", np.isinf(x)), ("nan", np.isnan(x))):
            found[name].append(_anywhere(hit, block))
            found[f"tensor_{name}"].append(_anywhere(hit, outer))
    return Facts(**{name: np.stack(arrays) for name, arrays in found.items()})


def _anywhere(hit: Array, block: Array) -> Array:
    """Returns an array that is True for every element of a block in which `hit` is True for some
    element. `block` has each element's block number."""
    return (np.bincount(block.reshape(-1), hit.reshape(-1)) > 0)[block]


@dataclass(frozen=True)
class Difference:
    """A known difference between stored values and CPD's values: the names of the cases, the
    reason, and a function that marks the elements that may differ."""

    names: str  # a pattern of fnmatch
    reason: str
    where: Callable[[Case, Facts], Array]


def _half_of_least(case: Case, f: Facts) -> Array:
    least = float(case.element.magnitude(1))
    return np.abs(f.quotient) == least / 2 * (1 - 2.0**-24)


def _logarithm_rounds_up(case: Case, f: Facts) -> Array:
    with np.errstate(divide="ignore"):
        logarithm = np.log2(np.abs(f.quotient)).astype(np.float32)
    return logarithm >= np.frexp(f.quotient)[1]


def _just_above_max(case: Case, f: Facts) -> Array:
    half = float(case.element.max) / 2
    return (f.largest > half) & (f.largest < half * (1 + 2.0**-22))


DIFFERENCES = [
    Difference(
        "torchao_main.even.*(exact)",
        "an amax whose rounding carries beyond binary32 loses the block; exactly, it is finite",
        lambda c, f: f.largest * f.scale >= 2.0**128 * (1 - 0.5 ** (c.element.man + 2)),
    ),
    Difference(
        "torchao_release.*",
        "0.18: in a block with code 0 the elements are multiplied by 2^126, in rceil by 1",
        lambda c, f: f.scale == 2.0**-127,
    ),
    Difference(
        "torchao_release.*",
        "0.18: a block with an Inf keeps a finite scale; one with a NaN finite elements",
        lambda c, f: f.inf | f.nan,
    ),
    Difference(
        "torchao_release.even.*",
        "0.18: amax whose rounding carries beyond binary32 keeps a finite scale",
        lambda c, f: np.isnan(f.scale) & ~f.inf & ~f.nan,
    ),
    Difference(
        "torchao_release.rceil.*",
        "0.18: the binary32 logarithm of amax / max is rounded down to an integer; amax clips",
        _just_above_max,
    ),
    Difference(
        "microxcaling.[ne]*",
        "the float just below half of the least value rounds up, as it becomes 1/2 + 1/2 in fp32",
        _half_of_least,
    ),
    Difference(
        "microxcaling.floor.*",
        "an element just below a power of two is truncated with the spacing above it",
        _logarithm_rounds_up,
    ),
    Difference(
        "te_nvfp4.*",
        "the reference encodes -0 as 0; the hardware's instruction, and ours, as 8",
        lambda c, f: (f.x == 0) & np.signbit(f.x),
    ),
    Difference(
        "te_nvfp4.*",
        "the reference's largest magnitude is NaN where one is; the kernels' and ours ignore it",
        lambda c, f: f.tensor_nan,
    ),
    Difference(
        "te_[bc]*",
        "the reference makes the scale of a block with Inf or NaN 0, NaN or 1/2; the kernels, 1",
        lambda c, f: f.inf | f.nan,
    ),
    Difference(
        "deepgemm.*_ue8m0.*",
        "a NaN makes the scale 2^127, as the pattern of one is rounded up; ours is NaN",
        lambda c, f: f.nan,
    ),
    Difference(
        "deepgemm.*.e2m1",
        "E2M1: ties go toward zero, not to even",
        lambda c, f: np.isin(np.abs(f.quotient), (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)),
    ),
    Difference(
        "deepgemm.*.e2m1",
        "E2M1: what rounds to zero loses its sign",
        lambda c, f: (np.abs(f.quotient) <= 0.25) & np.signbit(f.x),
    ),
]


# For each implementation, the number of values that were compared, and the number of values that
# differ as `DIFFERENCES` documents.
COUNTS = {
    "torchao_main": (158223, 0),
    "torchao_release": (158223, 9736),
    "te_mxfp8": (9471, 0),
    "microxcaling": (229600, 167),
    "microxcaling_cpp": (91840, 0),
    "torchao_nvfp4": (69874, 0),
    "te_nvfp4": (220626, 9662),
    "torchao_float8": (178228, 0),
    "te_current": (52275, 3073),
    "te_block": (266530, 3106),
    "torchao_blockwise": (52120, 0),
    "deepgemm": (156872, 5196),
}
DIFFERING = {
    "torchao_release.floor.e4m3": 792,
    "torchao_release.ceil.e4m3": 760,
    "torchao_release.even.e4m3": 858,
    "torchao_main.even.e4m3(exact)": 66,
    "torchao_release.rceil.e4m3": 1048,
    "microxcaling.floor.e4m3": 39,
    "torchao_release.floor.e5m2": 962,
    "torchao_release.even.e5m2": 1061,
    "torchao_main.even.e5m2(exact)": 99,
    "torchao_release.rceil.e5m2": 1280,
    "microxcaling.floor.e5m2": 47,
    "torchao_release.floor.e3m2": 370,
    "torchao_release.ceil.e3m2": 370,
    "torchao_release.even.e3m2": 373,
    "torchao_main.even.e3m2(exact)": 97,
    "microxcaling.nearest.e3m2": 2,
    "microxcaling.nearest_flush.e3m2": 2,
    "microxcaling.even_flush.e3m2": 2,
    "microxcaling.floor.e3m2": 33,
    "torchao_release.floor.e2m3": 281,
    "torchao_release.ceil.e2m3": 281,
    "torchao_release.rceil.e2m3": 459,
    "microxcaling.nearest.e2m3": 4,
    "microxcaling.nearest_flush.e2m3": 4,
    "microxcaling.even.e2m3": 4,
    "microxcaling.even_flush.e2m3": 4,
    "torchao_release.floor.e2m1": 172,
    "torchao_release.ceil.e2m1": 172,
    "torchao_release.even.e2m1": 176,
    "torchao_main.even.e2m1(exact)": 125,
    "torchao_release.rceil.e2m1": 321,
    "microxcaling.nearest.e2m1": 6,
    "microxcaling.nearest_flush.e2m1": 6,
    "microxcaling.even.e2m1": 6,
    "microxcaling.even_flush.e2m1": 6,
    "microxcaling.floor.e2m1": 2,
    "te_nvfp4.1x16": 1941,
    "te_nvfp4.16x16": 1865,
    "te_nvfp4.1x16_rowscaled": 959,
    "te_nvfp4.4over6_mae": 1930,
    "te_nvfp4.4over6_mae448": 1934,
    "te_nvfp4.1x16_rht": 1033,
    "te_current.tensor.e4m3": 1024,
    "te_block.1x128_fp32.e4m3": 388,
    "te_block.1x128_bf16.e4m3": 646,
    "te_current.tensor_pow2.e4m3": 1024,
    "te_block.1x128_pow2_fp32.e4m3": 260,
    "te_block.1x128_pow2_bf16.e4m3": 518,
    "te_current.tensor.e5m2": 1025,
    "te_block.1x128_fp32.e5m2": 388,
    "te_block.1x128_bf16.e5m2": 646,
    "te_block.1x128_pow2_fp32.e5m2": 260,
    "deepgemm.1x128_ue8m0.e4m3": 257,
    "deepgemm.1x32_ue8m0.e2m1": 4939,
}


@dataclass(frozen=True)
class Outcome:
    """The comparison of a case's stored arrays with CPD's results: for each array, the numbers of
    values compared and of values that differ. `reasons` has the indices of occurring
    `DIFFERENCES`."""

    compared: dict[str, int]
    differing: dict[str, int]
    reasons: set[int]


def counts(outcomes: Mapping[str, Outcome]) -> dict[str, tuple[int, int]]:
    """Returns the numbers of compared and of differing values in all cases, by implementation.
    COUNTS has the expected numbers."""
    compared: collections.Counter[str] = collections.Counter()
    apart: collections.Counter[str] = collections.Counter()
    for case in cases():
        if not case.about:
            compared[case.implementation] += sum(outcomes[case.key].compared.values())
            apart[case.implementation] += sum(outcomes[case.key].differing.values())
    return {name: (n, apart[name]) for name, n in compared.items()}


def unneeded(outcomes: Iterable[Outcome]) -> list[Difference]:
    """Returns the entries of `DIFFERENCES` that explain no difference, and so are obsolete."""
    needed = set().union(*(outcome.reasons for outcome in outcomes))
    return [d for i, d in enumerate(DIFFERENCES) if i not in needed]


def compare(case: Case, results: list[Result]) -> Outcome:
    """Compares CPD's results with the case's stored arrays, which another library computed. Fails
    for each difference that `DIFFERENCES` does not allow."""
    f = facts(case, results)
    allowed = {
        i: d.where(case, f)
        for i, d in enumerate(DIFFERENCES)
        if fnmatch.fnmatchcase(case.key, d.names)
    }
    every = np.any(list(allowed.values()), axis=0) if allowed else np.zeros(f.x.shape, bool)
    outcome = Outcome({}, {}, set())
    for what, theirs in case.arrays().items():
        differ, n, apart = differing(case, what, theirs, results)
        assert apart.shape == f.x.shape, (case.name, what)
        at = np.argwhere(apart & ~every)
        assert not len(at), f"{case.name}.{what}: {len(at)} values differ, the first at {at[0]}"
        outcome.compared[what] = n
        outcome.differing[what] = differ
        outcome.reasons.update(i for i, where in allowed.items() if (apart & where).any())
    return outcome


def differing(
    case: Case, what: str, theirs: Array, results: list[Result]
) -> tuple[int, int, Array]:
    """Compares a stored array, `theirs`, with CPD's results. Returns the number of values that
    differ, the number of values compared, and a mask of the input elements that differ."""
    match what:
        case "codes":
            ours = np.stack([r.codes for r in results])
            apart = classes(case.element, ours).reshape(theirs.shape) != classes(
                case.element, theirs
            )
            known = ~np.isnan(np.stack([_each(case, r.scales, "block") for r in results]))
            known = known.reshape(theirs.shape) | (case.element.nan_code is not None)
            apart &= known  # in a block with a NaN scale, codes have no meaning
            return int(apart.sum()), int(known.sum()), apart.reshape(_shape(case))
        case "dequant":
            apart = ~same(np.stack([r.values for r in results]).reshape(theirs.shape), theirs)
            return int(apart.sum()), apart.size, apart.reshape(_shape(case))
        case "scale" | "scale_inv":
            level, ours = "block", [r.scales for r in results]
        case _:
            level, ours = "outer", [r.outer for r in results]
    wanted = decode_scales(case, what, theirs).reshape(len(results), -1)
    apart = ~same(np.stack(ours), wanted)
    spread = np.stack([_each(case, row, level) for row in apart])
    return int(apart.sum()), apart.size, spread


def _each(case: Case, of_blocks: Array, level: str) -> Array:
    """Expands an array with a value for each block to an array with a value for each element."""
    block = case.spec.block if level == "block" else case.spec.outer
    shape = case.inputs()[0].shape
    return of_blocks[scaled_blocks.block_indices(shape, block, case.axis)]


def _shape(case: Case) -> tuple[int, ...]:
    tensors = case.inputs()
    return (len(tensors), *tensors[0].shape)


def same(a: Array, b: Array) -> Array:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def classes(element: Format, codes: Array) -> Array:
    """Returns the codes as integers, with -1 in place of every NaN's code."""
    nan = [isinstance(element.decode(c), oracle.NotANumber) for c in range(1 << element.bits)]
    return np.where(np.array(nan)[codes], -1, codes.astype(np.int64))


def decode_scales(case: Case, what: str, theirs: Array) -> Array:
    """Converts the scales that another library stored to CPD's form: decode scales, one per block.
    For NVFP4's `amax`, returns the outer scale of the tensor."""
    with np.errstate(all="ignore"):
        if what == "amax":
            top = np.float32(case.spec.element.max * case.spec.largest_scale)
            encode = np.minimum(top / theirs, np.finfo(np.float32).max)
            return np.float32(1) / np.where((encode == 0) | (theirs == 0), np.float32(1), encode)
        if theirs.dtype != np.uint8:
            return np.float32(1) / theirs if what == "scale" else theirs
    if case.spec.block == (16, 16):  # stored for each of the rows
        assert (theirs == theirs[:, :1]).all()
        theirs = theirs[:, :1]
    table = [to_float(case.spec.scale.decode(c)) for c in range(256)]
    return np.array(table)[theirs]


def to_float(v: oracle.Value) -> float:
    return float(scaled_oracle.to_f32(v))
