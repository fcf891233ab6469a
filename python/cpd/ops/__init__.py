# SPDX-License-Identifier: Apache-2.0
from cpd.ops import verbs
from cpd.ops.verbs import add, cast, decode, encode, fma, gemm, mul, random_integers, sum

__doc__ = verbs.__doc__
__all__ = ["add", "cast", "decode", "encode", "fma", "gemm", "mul", "random_integers", "sum"]
