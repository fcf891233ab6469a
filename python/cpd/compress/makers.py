# SPDX-License-Identifier: Apache-2.0
"""Compressors by their options.

Each function makes the codec of a text that it writes, as `codec` does. An option that is None has
the codec's default.
"""

from __future__ import annotations

from typing import Any, Literal

from cpd.compress.codec import Codec, CodecLike, codec, with_numbers
from cpd.numeric.checked import checked
from cpd.numeric.options import MAX_RANDOM_BITS
from cpd.numeric.scaled import ScaledLike, scaled


@checked
def qsgd(
    bits: int | None = None,
    bucket: int | Literal["tensor"] | None = None,
    norm: Literal["max", 2] | None = None,
    levels: Literal["signed", "intervals"] | None = None,
    coding: str | None = None,
    *,
    s: int | None = None,
    spacing: Literal["uniform", "optimal"] | None = None,
    axis: int | None = None,
    whole: int | None = None,
    seed: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
) -> Codec:
    """Makes QSGD (Alistarh et al., NeurIPS 2017).

    Values are fractions of buckets' norms, rounded without bias.

    Args:
        bits: bits of a value; 4 if None. 1 with levels="intervals": a random sign.
        bucket: the number of consecutive values that share a norm, or "tensor"; 512 if None.
        norm: the largest magnitude, "max", or the 2-norm, 2; "max" if None.
        levels: "signed": a sign and 2^(bits - 1) - 1 levels; "intervals": 2^bits - 1 intervals over
            [-norm, norm]; "signed" if None.
        coding: the code of the levels: "fixed" width if None, or one of Elias' codes.
        s: in place of bits: the paper's number of levels above zero, 1…32767. A value takes ⌈log2(2
            s + 1)⌉ bits of fixed width.
        spacing: the spacing of signed levels: "uniform" distances, or "optimal": the least variance
            of the layer (Grubic et al., section 2.3); "uniform" if None.
        axis: the axis along which a layer's columns run; buckets then have consecutive values of a
            column. If None, buckets have values of the layer in row-major order.
        whole: a bucket holds whole runs of this number of values, such as 9 for 3 × 3 kernels, and
            is shortened to them; 1 if None.
        seed: the seed of the random bits; default 0.
        random_bits: the number of random bits of a rounding, 1…24; default 24.

    Returns:
        The codec.

    Raises:
        ValueError: for an option out of range.
        TypeError: for an argument of another type.

    >>> qsgd(bits=2, bucket=128)
    cpd.compress.codec('qsgd bits=2 bucket=128')
    >>> qsgd(s=16, whole=9, axis=0)
    cpd.compress.codec('qsgd s=16 bucket=504 axis=0')
    """
    options = {
        "bits": bits,
        "s": s,
        "bucket": bucket,
        "whole": whole,
        "axis": axis,
        "norm": norm,
        "levels": levels,
        "coding": coding,
        "spacing": spacing,
    }
    return _made("qsgd", options, seed, random_bits)


@checked
def terngrad(
    clip: float | Literal["none"] | None = None,
    share: bool | None = None,
    bucket: int | Literal["tensor"] | None = None,
    clip_at: Literal["scaler", "workers"] | None = None,
    coding: Literal["fixed", "trits"] | None = None,
    *,
    whole: int | None = None,
    seed: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
) -> Codec:
    """Makes TernGrad (Wen et al., NeurIPS 2017).

    Values are -1, 0 and 1 times a scaler, rounded without bias. A layer of one value has no
    deviation, and always becomes 0 if values are clipped (`cpd.WireWarning`); so does a layer of
    equal values. The paper keeps a network's last layer in full precision: `cpd.Schedule(…,
    exempt=[…])`.

    Args:
        clip: values are first clipped to ± this times their standard deviation; "none": they are
            not. 2.5 if None.
        share: whether ranks agree on the largest scaler; if None, they do for whole tensors.
        bucket: the number of consecutive values that share a scaler, or "tensor"; "tensor" if None.
        clip_at: the limit of a rank's values if ranks share a scaler. "scaler" (if None, and in the
            authors' code): the shared scaler, the largest of the ranks'. A rank of smaller
            deviation then keeps values beyond its own 2.5 deviations. "workers": each rank's own
            limit, before the shared scaler, as in the paper's § 3.3.
        coding: "fixed" (if None): two bits a value. "trits": five values in a byte, 1.6 bits. Trits
            have no code for NaN: an all-reduce in which one may occur travels in fp32, with the
            same values, and `encode` raises ValueError.
        whole: a bucket holds whole runs of this number of values, and is shortened to them; 1 if
            None.
        seed: the seed of the random bits; default 0.
        random_bits: the number of random bits of a rounding, 1…24; default 24.

    Returns:
        The codec.

    Raises:
        ValueError: for an option out of range.
        TypeError: for an argument of another type.

    >>> terngrad(coding="trits", clip_at="workers")
    cpd.compress.codec('terngrad clip=2.5 clip_at=workers coding=trits')
    """
    options: dict[str, Any] = {"clip": clip, "share": share, "bucket": bucket, "whole": whole}
    options |= {"clip_at": clip_at, "coding": coding}
    return _made("terngrad", options, seed, random_bits)


@checked
def one_bit(
    bucket: int | None = None, axis: int | None = None, *, whole: int | None = None
) -> Codec:
    """Makes 1-bit SGD (Seide et al., Interspeech 2014).

    A value takes one bit. A column has two means. Errors are fed back.

    Args:
        bucket: the number of consecutive values of a bucket, in place of columns (Grubic et al.'s
            1bitSGD*, with 64).
        axis: the axis along which columns run; if None the first of two dimensions, the last of
            more. With a bucket: buckets have values of a column in place of the layer in row-major
            order.
        whole: a bucket holds whole runs of this number of values, and is shortened to them; 1 if
            None.

    Returns:
        The codec.

    Raises:
        ValueError: for an option out of range.
        TypeError: for an argument of another type.

    >>> one_bit(bucket=64, axis=0)
    cpd.compress.codec('one_bit bucket=64 axis=0')
    """
    return _made("one_bit", {"bucket": bucket, "whole": whole, "axis": axis})


@checked
def top_k(
    fraction: float,
    values: CodecLike = "fp32",
    feedback: bool | None = None,
    *,
    seed: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
) -> Codec:
    """Makes a codec that sends a layer's largest magnitudes; the other values become 0.

    Args:
        fraction: the fraction of the values that is sent, above 0 and at most 1; at least one value
            is.
        values: the codec of the sent values; default fp32. Its seed and random_bits are used.
        feedback: whether what was not sent is added to the next call's values; True if None.
        seed: the seed of `values`, if that is a text; default 0.
        random_bits: the random_bits of `values`, if that is a text; default 24.

    Returns:
        The codec.

    Raises:
        ValueError: for an option out of range.
        TypeError: for an argument of another type.
    """
    inner = with_numbers(values, seed, random_bits)
    words = _words({"feedback": feedback})
    return _like(inner, f"top_k {_number('fraction', fraction)} {inner.name} {words}".rstrip())


@checked
def fp8_rows(row: int | None = None) -> Codec:
    """Makes a codec of 8-bit floats (e4m3fn) with a scale for each row, as in torchft.

    A scale is max/448 of its row. A vector is one row.

    Args:
        row: the number of values of a row; if None, a row is one index of the layer's first
            dimension.

    Returns:
        The codec.

    >>> fp8_rows()
    cpd.compress.codec('fp8_rows')
    """
    return _made("fp8_rows", {"row": row})


@checked
def int8_rows(
    row: int | None = None,
    stochastic: bool = False,
    *,
    seed: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
) -> Codec:
    """Makes a codec of 8-bit integers with a scale for each row.

    A scale is max/127 of its row. A vector is one row.

    Args:
        row: the number of values of a row; if None, a row is one index of the layer's first
            dimension.
        stochastic: whether values are rounded without bias instead of to nearest-even; default
            False.
        seed: the seed of the random bits; default 0.
        random_bits: the number of random bits of a rounding, 1…24; default 24.

    Returns:
        The codec.
    """
    return _made("int8_rows", {"row": row}, seed, random_bits, stochastic=stochastic)


@checked
def int4(
    bucket: int | None = None,
    stochastic: bool = False,
    *,
    seed: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
) -> Codec:
    """Makes a codec of 4-bit integers with a scale for each bucket (ZeRO++, arXiv 2306.10209).

    A scale is max/7 of its bucket.

    Args:
        bucket: the number of consecutive values that share a scale; 32 if None.
        stochastic: whether values are rounded without bias instead of to nearest-even; default
            False.
        seed: the seed of the random bits; default 0.
        random_bits: the number of random bits of a rounding, 1…24; default 24.

    Returns:
        The codec.
    """
    return _made("int4", {"bucket": bucket}, seed, random_bits, stochastic=stochastic)


@checked
def quantized(
    q: ScaledLike,
    stochastic: bool = False,
    *,
    seed: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
) -> Codec:
    """Makes a codec of a scaled format (`cpd.scaled`) whose sums owners encode again.

    Args:
        q: the format, or its text.
        stochastic: whether values are rounded without bias instead of to nearest-even; default
            False.
        seed: the seed of the random bits; default 0.
        random_bits: the number of random bits of a rounding, 1…24; default 24.

    Returns:
        The codec.
    """
    return _made(f"quantized {scaled(q)}", {}, seed, random_bits, stochastic=stochastic)


@checked
def blockwise(inner: CodecLike, *, seed: int = 0, random_bits: int = MAX_RANDOM_BITS) -> Codec:
    """Applies a codec of whole layers to each 4096 values alone; owners encode sums again.

    If `inner` has no code for NaN, as "nvfp4", a NaN or an infinity makes its 4096 values NaN.

    Args:
        inner: `uniform`, a scaled format with one scale of the tensor such as "nvfp4", or another
            codec whose sums would be sent in FP32.
        seed: the seed of the random bits, and of `inner`, if that is a text; default 0.
        random_bits: the random_bits, and those of `inner`, if that is a text; default 24.

    Returns:
        The codec.

    Raises:
        ValueError: for a codec that encodes sums again already, or has no scale.
        TypeError: for an argument of another type.
    """
    made = with_numbers(inner, seed, random_bits)
    return _like(made, f"blockwise {made.name}")


@checked
def uniform(
    bits: int | Literal["entropy", "gradient"] | None = None,
    coding: Literal["huffman", "fixed"] | None = None,
    results: Literal["exact", "encoded"] | None = None,
    *,
    seed: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
    **rule: float,
) -> Codec:
    """Makes a codec of equal bins from a layer's least value to its greatest, for weights.

    The rule is Øland and Raj's (ICASSP 2015).

    Args:
        bits: N = log2 of the number of bins, or what N is computed from; "entropy" if None.
            "entropy": the entropy H of a sample (N = H + c, with `c`, `sample` and `fraction`).
            "gradient": the root mean square G of the layer's gradient (N = log2(G + c0) + c1),
            which `States.set_gradient` sets. A call that does not know G raises ValueError.
        coding: "huffman" or "fixed"; "huffman" if None.
        results: with `exchange="owner"`, how sums are sent back. "exact" (if None): in the spec's
            `result` (fp32). "encoded": each 65,536 values of a layer in bins again, with their own
            range and bits (§ 2 there); not with bits="gradient", since sums have no gradient.
        seed: the seed of the sample; default 0.
        random_bits: the random_bits of the sample; default 24.
        **rule: the numbers `c`, `sample`, `fraction`, `c0` and `c1` of `bits`.

    Returns:
        The codec.

    Raises:
        ValueError: for an option out of range.
        TypeError: for an argument of another type.

    >>> uniform(results="encoded").name
    'uniform bits=entropy c=6 sample=4 fraction=0.03 coding=huffman results=encoded'
    """
    options: dict[str, Any] = {"bits": bits, **rule, "coding": coding, "results": results}
    return _made("uniform", options, seed, random_bits)


@checked
def feedback(inner: CodecLike, *, seed: int = 0, random_bits: int = MAX_RANDOM_BITS) -> Codec:
    """Adds error feedback to any codec (Seide et al.; LoCo).

    A call's errors are added to the next call's values.

    Args:
        inner: the codec; its seed and random_bits are used.
        seed: the seed of `inner`, if that is a text; default 0.
        random_bits: the random_bits of `inner`, if that is a text; default 24.

    Returns:
        The codec.

    Raises:
        ValueError: for an option out of range.
        TypeError: for an argument of another type.
    """
    made = with_numbers(inner, seed, random_bits)
    return _like(made, f"feedback {made.name}")


def _made(
    name: str,
    options: dict[str, Any],
    seed: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
    stochastic: bool = False,
) -> Codec:
    words = _words(options) + (" stochastic" if stochastic else "")
    return codec(f"{name} {words}".strip(), seed=seed, random_bits=random_bits)


def _like(inner: Codec, text: str) -> Codec:
    return codec(text, seed=inner.seed, random_bits=inner.random_bits)


def _words(options: dict[str, Any]) -> str:
    given = [f"{key}={_value(key, value)}" for key, value in options.items() if value is not None]
    return " ".join(given)


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else _number(name, value)


def _number(name: str, value: Any) -> str:
    """Returns a number's text, as C++ reads it; raises TypeError for anything but a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return repr(value)
