# SPDX-License-Identifier: Apache-2.0
"""Decides which rows a run measures, by patterns of their names: the main rows, all rows, or the
rows whose names contain a text."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from fnmatch import fnmatchcase

PRINCIPAL = (
    *("cast/nearest_even/e4m3", "cast/nearest_even/fp16", "cast/nearest_even/bf16"),
    *("cast/nearest_even/bf16/subnormal", "cast/nearest_even/e4m3fn"),
    *("cast/stochastic8/e4m3", "cast/stochastic16/e4m3", "cast/stochastic24/e4m3"),
    *("encode/e4m3", "decode/e4m3", "pack/e4m3", "unpack/e4m3", "torch/encode/e4m3fn"),
    *("fold/256", "fold/256/kahan", "scaled/cast/mxfp8", "scaled/cast/nvfp4", "hadamard/16"),
    *("compress/encode/int8_rows", "compress/encode/qsgd_bits=4_bucket=512"),
    *("gemm/sequential/e4m3/512", "gemm/sequential/e4m3/1024", "gemm/fma/e4m3/512"),
    *("gemm/kahan/e4m3/512", "gemm/stochastic8/e4m3/512", "gemm/stochastic24/e4m3/512"),
    *("gemm/h100-fp8/e4m3/512", "gemm/sequential/e4m3/1024/threads2", "gemm/sequential/fp32/512"),
    *("avx2/gemm/sequential/e4m3/512", "gemm/batch/sequential/e4m3/64x64", "gemm/int32/int8/512"),
    *("gemm/scaled/block128/e4m3/512", "overhead/numpy/cast", "overhead/torch/gemm"),
    *("model/gpt/te-current", "model/resnet18/te-current"),
    "model/virtual-nodes-perceptron/one-pass",
    *("all_reduce/1gbps/e4m3", "all_reduce/1gbps/qsgd4", "all_reduce/loopback/e4m3"),
)
"""The names of the rows in the table of benchmarks/README.md."""

MAIN = (
    *PRINCIPAL,
    *("cast/nearest_even/e5m2", "cast/nearest_even/e4m3fnuz", "cast/nearest_even/binary8p4se"),
    *("cast/nearest_even/e4m3/special", "cast/down/e4m3", "cast/fresh/torch", "cast/size/65536"),
    *("cast/nearest_even/e4m3/threads2", "avx2/cast/*", "avx2/encode/*", "avx2/decode/*"),
    *("encode/e2m1", "encode/fp16", "decode/e2m1", "decode/fp16", "pack/e2m1", "unpack/e2m1"),
    *("torch/cast/e4m3fn", "torch/decode/e4m3fn"),
    *("fold/256/known", "fold/256/stochastic8", "fold/256/e3m0*", "fold_packed/256"),
    *("arithmetic/*/e4m3", "arithmetic/fma/e4m3/any", "arithmetic/mul/e4m3/*"),
    *("scaled/cast/mxfp4", "scaled/cast/fp8-block", "scaled/cast_slow/mxfp8"),
    *("scaled/encode/mxfp8", "scaled/encode/nvfp4", "scaled/decode/mxfp8", "scaled/stochastic/*"),
    "hadamard_slow/16",
    *("compress/decode/int8_rows", "compress/decode/qsgd_bits=4_bucket=512"),
    *("compress/*code/terngrad", "compress/*code/one_bit", "compress/*code/top_k_0.01"),
    *("compress/*code/int4", "compress/*code/qsgd_bits=4_bucket=512_coding=elias-dense"),
    *("gemm/from-e4m3/sequential/fp16/512", "gemm/from-e5m2/sequential/e6m9/512"),
    *("gemm/chunked64/e6m9/512", "gemm/pairwise/e4m3/512", "gemm/stochastic16/e4m3/512"),
    *("gemm/h100-fp16/e4m3/512", "gemm/kulisch/e4m3fn/512", "gemm/blas/fp32/512"),
    *("gemm/sequential/e5m2/512", "gemm/sequential/fp16/512", "gemm/fma/fp16/512"),
    *("gemm/map/sequential/*", "gemm/map/fma/*", "gemm/map/kahan/bf16/*"),
    *("gemm/map/stochastic8/bf16/*", "gemm/map/stochastic8/e2m1/*"),
    *("gemm/sequential/e4m3/1000x777x513", "gemm/sequential/e4m3/512/careful"),
    *("gemm/size/sequential/e4m3/64", "gemm/size/sequential/e4m3/192"),
    *("avx2/gemm/fma/e4m3/512", "avx2/gemm/kahan/e4m3/512", "avx2/gemm/stochastic8/e4m3/512"),
    *("gemm/scaled/block32/e4m3/512", "overhead/numpy/*", "overhead/torch/*"),
    *("model/gpt/mxfp8", "model/gpt/nvfp4", "model/resnet18/mxfp8", "model/small/mxfp8"),
    *("vectors/mul/bf16/threads2", "vectors/mul/e4m3fn/threads2", "model/lstm/te-current"),
)
"""The patterns of the main rows: the rows of benchmarks/README.md and, for each kind of loop, one
row for each kind of format."""

PARTS = ("fold/256", "pack/e4m3", "unpack/e4m3")
"""The benchmark rows that measure parts of an all-reduce: the sum, packing and unpacking. The
command `./dev bench all_reduce` measures these rows too, although their names lack `all_reduce`.
"""


@dataclass(frozen=True)
class Selection:
    """A selection of benchmark rows: those whose names match one of the patterns."""

    patterns: tuple[str, ...]

    def wants(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def reaches(self, family: str) -> bool:
        """Returns whether the selection can contain rows whose names begin with `family`."""
        return self.wants(family) or any(p.startswith(family) for p in self.patterns)


EVERY = Selection(("*",))


def selection(text: str, every: bool = False) -> Selection:
    """Selects the rows whose names contain `text`. Without a text, selects the main rows, or all
    rows if `every`."""
    if not text:
        return EVERY if every else Selection(MAIN)
    also = PARTS if text == "all_reduce" else ()
    return Selection((f"*{glob.escape(text)}*", *also))
