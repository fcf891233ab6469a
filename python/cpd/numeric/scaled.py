# SPDX-License-Identifier: Apache-2.0
"""Defines `Scaled`: a format of values in blocks that share a scale, such as MX or NVFP4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike, as_format, format_text, named
from cpd.numeric.numbers import int32, int64
from cpd.numeric.shown import kind_of, shown
from cpd.numeric.spec import KINDS, Kind, Spec, made


def block_text(block: Any) -> str:
    """Returns the shape of a block as the text that C++ reads: "32", "1x128", "row" or "tensor"."""
    if isinstance(block, str):
        return block
    if isinstance(block, tuple) and len(block) == 2:
        rows, columns = (int32("block", size) for size in block)
        return f"{rows}x{columns}"
    if not isinstance(block, int):
        raise TypeError(f"block must be an int, a text or a pair of ints, got {kind_of(block)}")
    return str(int32("block", block))


def element_text(name: str, element: FormatLike) -> str:
    """Returns the text of an element format for C++.

    The text "e4m3" is returned unchanged, and C++ refuses it as ambiguous. A `Format` e4m3 gives
    "(4,3)".
    """
    if isinstance(element, str):
        return element
    text = format_text(name, element)
    return "(4,3)" if text == "e4m3" else text


@constant
def named_scaled(text: str) -> Scaled:
    """Returns the scaled format of a text."""
    return made(Scaled, text, ())


KINDS["element"] = Kind(element_text, named)
KINDS["block"] = Kind(lambda name, block: block_text(block))
KINDS["transform"] = KINDS["word"]


class Scaled(Spec, native=_core.Scaled):
    """A scaled format: a block of elements in a narrow format shares one scale.

    A value is its element times the scale of its block. With `tensor_scale` it is also multiplied
    by the outer scale of its tensor (or row).

    Args:
        format: the text of a scaled format, or a `Scaled`; keywords replace its options. Or the
            format of the elements, in any form that `Format` takes: `e4m3fn`, `e2m1`, `int8`. Texts
            are:

            - A name. OCP MX 1.0: `mxfp8`, `mxfp8-e5m2`, `mxfp6-e3m2`, `mxfp6-e2m3`, `mxfp4`,
              `mxint8` (blocks of 32 values, scales in `e8m0`, rule `floor`). NVIDIA: `nvfp4`
              (blocks of 16 values, scales in `e4m3fn`, an outer fp32 scale of the tensor, rounded
              as in TransformerEngine). FP8 with fp32 scales: `fp8-tensor`, `fp8-row`, `fp8-block`
              (blocks of 1 x 128, rounded as in DeepGEMM; for weights `fp8-block 128x128`). Block
              floating point: `bfp8` (blocks of 16 8-bit integers, scales in `e8m0`); `bfpN` has
              N-bit integers.
            - An element format and its block: `e4m3fn 1x128`, `int8 row`, `int4 64`. By default the
              scales of integers are in fp32.
            - A name or an element format, then options as `name=value`. Options have the names of
              the keywords below: `mxfp8 rule=rceil`, `nvfp4 block=16x16 choose=mae`, `e4m3fn
              block=tensor scale=fp32`.

        element: the format of the elements. It replaces the element format of the text.
        block: the values that share a scale. The last block along a dimension may be smaller.
            Default 32.

            - N, an int: N values along the axis.
            - `"RxC"`: C values along the axis times R values along the last dimension. If the axis
              is the last dimension, the R values are along the dimension before.
            - `"row"`: all values along the axis.
            - `"tensor"`: all values.

        scale: the format of the scales; default `e8m0`. A value is decoded as its element times the
            scale.
        rule: the rule for a block's scale. A is the block's largest magnitude, M the element
            format's max, and 2^emax the largest power of two up to M. Default: `floor` for `e8m0`,
            else `max`.

            - `floor`: 2^(floor(log2 A) - emax), the rule of OCP MX.
            - `ceil`: 2^(ceil(log2 A) - emax).
            - `rceil`: 2^ceil(log2(A/M)).
            - `even`: like `floor`, after A is rounded to the elements' mantissa bits, ties up.
            - `max_pow2`: 1/p, where p is M/A rounded down to a power of two.
            - `max` (or `nearest`): A/M, rounded to nearest-even in the scale's format.
            - `up`: A/M, rounded up in the scale's format.

        tensor_scale: the format of an outer scale of the whole tensor (or row, see `outer`);
            default: no outer scale. The outer scale is A/(M * scale_max), rounded to nearest-even,
            with the tensor's largest magnitude A and the element format's max M. The scales of
            blocks are computed from the values divided by the outer scale.
        arithmetic: the rounding of intermediate results when scales and elements are computed.
            `exact` (default): each quotient is rounded once. `te` (TransformerEngine's CUDA
            kernels), `torchao`, `deepgemm`, `microxcaling`: the binary32 operations of that
            library. They support only the scales that the library has.
        outer: the values that share the outer scale: `tensor` (default) or `row`.
        margin: multiplies scales by 2^margin; -64 to 64, default 0.
        non_finite: the effect of a NaN or an infinity among the values. Default: `element` with
            arithmetic `te`, else `block`.

            - `block`: the scale of the value's block is NaN, and so are all values of the block.
              (Arithmetic `deepgemm`, and `torchao` with scales other than e8m0, give the library's
              result instead.)
            - `element`: A is computed without the NaNs. A NaN remains NaN, and an infinity
              saturates.

        choose: `mae` or `mse`: tries two scales for each block, which map A to M and to M/1.5 (the
            method '4 over 6'). The scale with the smaller sum of absolute (`mae`) or squared
            (`mse`) errors is used; if the sums are equal, the first. Default: one scale.
        scale_max: with an outer scale: the scale of the block that has the tensor's largest
            magnitude; default: the scale format's max.
        transform: the text of a Hadamard transform (`cpd.hadamard`). It is applied to the inputs
            along the axis, in their dtype, before scales are computed. The results of a cast remain
            transformed. Both operands of a product need the same transform. Default: `"none"`.

    The scale of a block of zeros is zero rounded to the scale's format (`e8m0`: 2^-127). If a scale
    is 0, the elements of its block are 0. Scales saturate. If the rule gives powers of two, the
    largest scale is the largest power of two of the scale's format (`e4m3fn`: 256). With other
    rules, the largest scale is the format's greatest value (448).

    Raises:
        ValueError: for an invalid text, name or combination of options.
        TypeError: for an argument of another type.

    >>> q = Scaled("e2m1", block=16, scale="e4m3fn", tensor_scale="fp32", arithmetic="te")
    >>> q, Scaled("mxfp8", rule="rceil"), Scaled("mxfp4", element="e3m2")
    (cpd.Scaled('nvfp4'), cpd.Scaled('mxfp8 rule=rceil'), cpd.Scaled('mxfp6-e3m2'))
    >>> Scaled("nvfp4").scale, Scaled("int8 row").element.max
    (cpd.Format('e4m3fn'), 127.0)
    >>> q.scales_shape((8, 64)), q.bits_per_value((1024, 1024))
    ((8, 4), 4.500030517578125)
    """

    element: Format
    block: str
    scale: Format
    rule: str
    tensor_scale: Format | None
    arithmetic: str
    outer: str
    margin: int
    non_finite: str
    choose: str
    scale_max: float | None
    transform: str | None
    _held: _core.Scaled

    def __init__(
        self,
        format: FormatLike | ScaledLike | None = None,
        /,
        *,
        element: FormatLike | None = None,
        block: int | str | tuple[int, int] | None = None,
        scale: FormatLike | None = None,
        rule: str | None = None,
        tensor_scale: FormatLike | None = None,
        arithmetic: str | None = None,
        outer: str | None = None,
        margin: int | None = None,
        non_finite: str | None = None,
        choose: str | None = None,
        scale_max: float | None = None,
        transform: str | None = None,
    ) -> None: ...

    @classmethod
    def _head(cls, spec: Any, keys: dict[str, Any]) -> str:
        if spec is None and "element" not in keys:
            raise TypeError("Scaled takes the text of a scaled format, or an element format")
        if spec is None or isinstance(spec, Scaled):
            return "" if spec is None else spec.text
        if isinstance(spec, str) and not _is_format(spec):
            return spec
        if "element" in keys:
            raise TypeError(
                f"elements are given twice: {shown(spec)} and element={keys['element']!r}"
            )
        keys["element"] = spec
        return ""

    def scales_shape(self, shape: Sequence[int], axis: int = -1) -> tuple[int, ...]:
        """Returns the number of blocks along each dimension of a tensor.

        The scales that `cpd.encode` returns have this shape, in row-major order.

        Args:
            shape: the tensor's shape.
            axis: the axis along which blocks run; default the last.

        Returns:
            The number of blocks along each dimension; () for one scale of the whole tensor.

        Raises:
            ValueError: for an axis that the shape does not have.
        """
        return tuple(self._held.grid(_sizes(shape), int32("axis", axis)))

    def tensor_scales_shape(self, shape: Sequence[int], axis: int = -1) -> tuple[int, ...]:
        """Returns the shape of the outer scales of a tensor of the shape `shape`.

        Args:
            shape: the tensor's shape.
            axis: the axis along which blocks run; default the last.

        Returns:
            The number of outer scales along each dimension; () for one outer scale of the whole
            tensor.

        Raises:
            ValueError: for a format without outer scales.
        """
        if self.tensor_scale is None:
            raise ValueError(f"{self} has one level of scales")
        return tuple(self._held.outer_grid(_sizes(shape), int32("axis", axis)))

    def bits_per_value(self, shape: Sequence[int], axis: int = -1) -> float:
        """Returns the mean number of bits for each value, scales included.

        Args:
            shape: the tensor's shape.
            axis: the axis along which blocks run; default the last.

        Returns:
            The bits of all codes and scales of the tensor, divided by its number of values.
        """
        return self._held.bits_per_value(_sizes(shape), int32("axis", axis))

    def __reduce__(self) -> tuple[Any, ...]:
        return Scaled, (self.text,)


def _sizes(shape: Sequence[int]) -> list[int]:
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
        raise TypeError(f"shape must be a sequence of ints, got {type(shape).__name__}")
    return [int64("shape", size) for size in shape]


ScaledLike: TypeAlias = "Scaled | str"
"""A `Scaled` or its text."""


def scaled(text: str) -> Scaled:
    """Returns the scaled format of a text. Pickles of version 0.7 call this function."""
    return named_scaled(text)


def format_or_scaled(f: FormatLike | ScaledLike) -> Format | Scaled:
    """Returns a `Format` or a `Scaled` from any form in which an operation takes its format."""
    if isinstance(f, (Format, Scaled)):
        return f
    if isinstance(f, str):
        return _either(f)
    return as_format(f)


def element_format(f: Format | Scaled) -> Format:
    """Returns `f`, or for a scaled format the format of its elements."""
    return f.element if isinstance(f, Scaled) else f


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def untransformed(text: str) -> Scaled:
    """Returns the scaled format of a text with `transform` set to "none"."""
    return Scaled._of(_core.Scaled.parse(text).untransformed())


@constant
def _either(text: str) -> Format | Scaled:
    return named_scaled(text) if _core.names_scaled(text) else as_format(format_text("", text))


@constant
def _is_format(text: str) -> bool:
    try:
        named(text)
    except ValueError:
        return False
    return True
