# SPDX-License-Identifier: Apache-2.0
"""Compressors by their options. Each function makes the codec of a text that it writes, as `codec`
does; an option that is None has the codec's default."""

from __future__ import annotations

from typing import Any, Literal

from cpd.compress.codec import Codec, CodecLike, codec, with_numbers
from cpd.numeric.checked import checked
from cpd.numeric.options import MAX_RANDOM_BITS
from cpd.numeric.scaled import ScaledLike, as_scaled


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
    """QSGD (Alistarh et al., NeurIPS 2017): fractions of buckets' norms, rounded without bias.

    Args:
        bits: of a value; 4 if None. 1 with levels="intervals": a random sign.
        bucket: consecutive values that share a norm, or "tensor"; 512 if None.
        norm: the largest magnitude, or the 2-norm; "max" if None.
        levels: a sign and 2^(bits - 1) - 1 levels, or 2^bits - 1 intervals over [-norm, norm].
        coding: of the levels: "fixed" width if None, or one of Elias' codes.
        s: in place of bits: the paper's number of levels above zero, 1…32767; a value takes
            ⌈log2(2 s + 1)⌉ bits of fixed width.
        spacing: of signed levels: equal distances, or "optimal": where the layer's variance is
            least (Grubic et al., section 2.3); "uniform" if None.
        axis: along which a layer's columns run, whose consecutive values are then buckets'; if
            None buckets are of the layer in row-major order.
        whole: a bucket holds whole runs of so many values, such as 9 of 3 × 3 kernels, and is
            shortened to them; 1 if None.
        seed, random_bits: of the random bits.

    Raises ValueError or TypeError.

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
    """TernGrad (Wen et al., NeurIPS 2017): -1, 0 and 1 times a scaler, rounded without bias.

    Args:
        clip: values are clipped to ± this times their standard deviation first; 2.5 if None.
        share: whether ranks agree on the largest scaler; for whole tensors if None.
        bucket: consecutive values that share a scaler, or "tensor", the default.
        whole: a bucket holds whole runs of so many values, and is shortened to them; 1 if None.
        clip_at: where ranks share a scaler, what clips a rank's values: the shared "scaler", the
            largest of the ranks' (the default, and what the authors' code does), so that a rank of
            smaller deviation keeps values beyond its own 2.5 of them; or "workers": each rank's
            own limit, before the shared scaler, as the paper's § 3.3 says.
        coding: "fixed": two bits a value, the default; or "trits": five values in a byte, 1.6 bits.
            Those have no code for NaN: an all-reduce in which one may occur travels in fp32, with
            the same values, and `encode` raises ValueError.
        seed, random_bits: of the random bits.

    A layer of one value has no deviation, and always becomes 0 where values are clipped
    (`cpd.WireWarning`); so does a layer of equal values. The paper keeps a network's last layer in
    full precision: `cpd.Schedule(…, exempt=[…])`.

    Raises ValueError or TypeError.

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
    """1-bit SGD (Seide et al., Interspeech 2014): one bit per value, two means per column, and
    error feedback.

    Args:
        bucket: consecutive values in place of columns (Grubic et al.'s 1bitSGD*, with 64).
        axis: along which columns run; if None the first of two dimensions, the last of more. With
            a bucket: of columns in place of the layer in row-major order.
        whole: a bucket holds whole runs of so many values, and is shortened to them; 1 if None.

    Raises ValueError or TypeError.

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
    """The largest magnitudes of a layer, the others 0.

    Args:
        fraction: of the values that are kept, above 0 and at most 1; at least one is.
        values: the codec of those that are kept; its seed and random_bits are used.
        feedback: whether what was not sent is added to the next call's values; True if None.
        seed, random_bits: of `values`, where that is a text.

    Raises ValueError or TypeError.
    """
    inner = with_numbers(values, seed, random_bits)
    words = _words({"feedback": feedback})
    return _like(inner, f"top_k {_number('fraction', fraction)} {inner.name} {words}".rstrip())


@checked
def fp8_rows(row: int | None = None) -> Codec:
    """8-bit floats (e4m3fn) times max/448 of each row, as in torchft; a vector is one row.

    Args:
        row: values of a row; if None, a row is one index of the layer's first dimension.

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
    """8-bit integers times max/127 of each row; a vector is one row.

    Args:
        row: values of a row; if None, a row is one index of the layer's first dimension.
        stochastic: rounds without bias instead of to nearest-even.
        seed, random_bits: of the random bits.
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
    """4-bit integers times max/7 of each bucket (ZeRO++, arXiv 2306.10209).

    Args:
        bucket: consecutive values that share a scale; 32 if None.
        stochastic: rounds without bias instead of to nearest-even.
        seed, random_bits: of the random bits.
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
    """A scaled format (`cpd.Scaled`) whose sums owners encode again.

    Args:
        q: the format, or its text.
        stochastic: rounds without bias instead of to nearest-even.
        seed, random_bits: of the random bits.
    """
    return _made(f"quantized {as_scaled(q)}", {}, seed, random_bits, stochastic=stochastic)


@checked
def blockwise(inner: CodecLike, *, seed: int = 0, random_bits: int = MAX_RANDOM_BITS) -> Codec:
    """A codec of whole layers, applied to each 4096 values alone, whose sums owners encode again.

    Where `inner` has no code for NaN, as "nvfp4", a NaN or an infinity makes its 4096 values NaN.

    Args:
        inner: `uniform`, a scaled format with one scale of the tensor such as "nvfp4", or another
            whose sums would be sent in FP32.
        seed, random_bits: of `inner`, where that is a text, and of the random bits.

    Raises ValueError or TypeError: a codec that encodes sums again already, or has no scale.
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
    """Bins of equal width from a layer's least value to its greatest, for weights (Øland and Raj,
    ICASSP 2015).

    Args:
        bits: N = log2 of the number of bins, or what it is computed from: the "entropy" H of a
            sample (N = H + c, with `c`, `sample` and `fraction`), or the root mean square G of the
            layer's "gradient" (N = log2(G + c0) + c1), which `States.set_gradient` sets; a call
            that does not know G raises ValueError. "entropy" if None.
        coding: "huffman" if None.
        results: with `exchange="owner"`, how sums go back: "exact", in the spec's `result` (fp32),
            the default; or "encoded": each 65,536 values of a layer in bins again, with a range and
            bits of their own (§ 2 there). Not with bits="gradient": sums have none.
        seed, random_bits: of the sample.
        rule: these numbers.

    Raises ValueError or TypeError.

    >>> uniform(results="encoded").name
    'uniform bits=entropy c=6 sample=4 fraction=0.03 coding=huffman results=encoded'
    """
    options: dict[str, Any] = {"bits": bits, **rule, "coding": coding, "results": results}
    return _made("uniform", options, seed, random_bits)


@checked
def feedback(inner: CodecLike, *, seed: int = 0, random_bits: int = MAX_RANDOM_BITS) -> Codec:
    """Any codec, whose errors are added to the next call's values (Seide et al.; LoCo).

    Args:
        inner: the codec; its seed and random_bits are used.
        seed, random_bits: of `inner`, where that is a text.

    Raises ValueError or TypeError.
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
    """A number's text, as C++ reads it. Raises TypeError for anything but a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return repr(value)
