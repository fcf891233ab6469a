# SPDX-License-Identifier: Apache-2.0
from cpd.numeric.accumulator import AccumulatorLike
from cpd.numeric.formats import FormatLike
from cpd.numeric.hadamard import HadamardLike
from cpd.numeric.numbers import Number
from cpd.ops import operations
from cpd.ops.arguments import ArrayT, Shape
from cpd.ops.encoded import Encoded
from cpd.ops.operations import (
    add,
    cast,
    decode,
    div,
    encode,
    fma,
    gemm,
    hadamard,
    mul,
    random_integers,
    sqrt,
    sum,
)

__doc__ = operations.__doc__
__all__ = [
    "AccumulatorLike",
    "ArrayT",
    "Encoded",
    "FormatLike",
    "HadamardLike",
    "Number",
    "Shape",
    "add",
    "cast",
    "decode",
    "div",
    "encode",
    "fma",
    "gemm",
    "hadamard",
    "mul",
    "random_integers",
    "sqrt",
    "sum",
]
