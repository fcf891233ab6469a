# SPDX-License-Identifier: Apache-2.0
"""The golden vectors of scaled formats as one table: which array is which `cpd.Scaled`, and which
of its values differ for a reason. Driven through the oracle and through the public verbs."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import oracle
import scaled_oracle
from oracle import Spec as Format

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

_ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("CPD_DATA", _ROOT.parent / "shared" / "data")) / "scaling"
REASON = f"no vectors of scaled formats at {DATA} (CPD_DATA names the data folder)"

# What the texts of formats in these tests stand for.
FORMATS = {
    "e4m3fn": Format(4, 3, None, "fn"),
    "e5m2": Format(5, 2),
    "e3m2": Format(3, 2, None, "finite"),
    "e2m3": Format(2, 3, None, "finite"),
    "e2m1": Format(2, 1, None, "finite"),
    "e1m6finite:bias=1": Format(1, 6, 1, "finite"),  # OCP's int8: steps of 2^-6
    "int4": scaled_oracle.integer(4),
    "int8": scaled_oracle.integer(8),
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
    "int8": "e1m6finite:bias=1",
}


def spec_of(arguments: Mapping[str, Any]) -> scaled_oracle.Spec:
    """The oracle's descriptor of what `cpd.Scaled` is called with."""
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
    """A group of arrays of one implementation: `name.codes`, `name.scale`, …, of one input."""

    name: str
    file: str
    source: str
    arguments: Mapping[str, Any]
    axis: int = -1
    rounding: str = "nearest_even"
    apart: bool = False  # each of the first dimension is a tensor of its own
    prepare: Callable[[Array], Array] = field(default=lambda x: x)

    @property
    def implementation(self) -> str:
        return self.name.split(".")[0]

    @property
    def element(self) -> Format:
        return FORMATS[self.arguments["element"]]

    def inputs(self) -> list[Array]:
        """The tensors that are encoded."""
        x = self.prepare(load(self.file)[self.source])
        return list(x) if self.apart else [x]

    def labels(self) -> list[str]:
        """Of the first dimension."""
        return labels(self.source)

    def arrays(self) -> Arrays:
        """The original's, by what they are."""
        arrays = load(self.file)
        whats = ("codes", "scale", "scale_inv", "tensor_scale", "dequant", "amax")
        return {w: arrays[f"{self.name}.{w}"] for w in whats if f"{self.name}.{w}" in arrays}


@functools.cache
def load(file: str) -> Arrays:
    with np.load(DATA / f"{file}.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@functools.cache
def labels(source: str) -> list[str]:
    index = json.loads((DATA / "index.json").read_text())
    name = source.removeprefix("in.").removesuffix("_bf16")
    found: list[str] = index["labels"].get(name, ["tile", "tile"])
    return found


def bfloat16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16)


def bfloat16_bits(x: Array) -> Array:
    return x.view(ml_dtypes.bfloat16)


def without_subnormal_blocks(x: Array) -> Array:
    """microxcaling's flush: a block is 0 where its largest magnitude is below 2^-126."""
    return np.where(np.abs(x).max(axis=-1, keepdims=True) < 2.0**-126, np.float32(0), x)


def every_second(x: Array) -> Array:
    return x[::2]


def cases() -> list[Case]:
    """All that are stored."""
    return [c for c in (*_mx(), *_nvfp4(), *_fp8()) if c.arrays()]


def _mx() -> Iterator[Case]:
    for element, text in ELEMENTS.items():
        def of(name: str, **more: Any) -> Case:
            keys = ("rounding", "prepare")
            own = {k: more.pop(k) for k in keys if k in more}
            return Case(f"{name}.{element}", "mx", "in.mx_x", {"element": text, **more}, **own)  # noqa: B023

        for rule in ("floor", "ceil", "even", "rceil"):
            for version in ("main", "release"):
                yield of(f"torchao_{version}.{rule}", rule=rule, arithmetic="torchao")
        yield of("te_mxfp8.rceil", rule="rceil", arithmetic="te")
        roundings = {"nearest": "nearest_away", "even": "nearest_even", "floor": "toward_zero"}
        for round_, rounding in roundings.items():
            for flush in ("", "_flush"):
                prepare = without_subnormal_blocks if flush else np.asarray
                more = {"rounding": rounding, "prepare": prepare}
                yield of(f"microxcaling.{round_}{flush}", arithmetic="microxcaling", **more)
                yield of(f"microxcaling_cpp.{round_}{flush}", **more)


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
            for shape, block, axis in (("tensor", "tensor", -1), ("row", "row", -1), ("col", "row", -2)):
                name = f"torchao_float8.{shape}{pow2}.{element}"
                ao = {**of, "block": block, "arithmetic": "torchao"}
                yield Case(name, arguments=ao, axis=axis, apart=True, **every)
            name = f"te_current.tensor{pow2}.{element}"
            te = {**of, "arithmetic": "te"}
            yield Case(name, arguments={**te, "block": "tensor"}, apart=True, **every)
            for block, source in (("1x128", "in.blk_x"), ("128x128", "in.tile_x")):
                for carrier, prepare in (("fp32", np.asarray), ("bf16", bfloat16)):
                    name = f"te_block.{block}{pow2}_{carrier}.{element}"
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
    for kind, rule in (("fp32", "max"), ("ue8m0", "up")):
        arguments = {**of, "rule": rule, "arithmetic": "deepgemm"}
        yield Case(f"deepgemm.{block}_{kind}.{element}", "fp8", source, arguments, axis)
