// SPDX-License-Identifier: Apache-2.0
//
// Casts of tensors into a format, and the random integers that a cast uses.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Rounds x[i] once into `format` and writes it to out[i]. The type of out must hold the format
/// (CheckStorage). x and out: fp32, fp64, bf16 or fp16, of equal shapes and any strides. An fp64
/// input is rounded from its 53 bits. out may be x itself; any other overlap is undefined.
///
/// `random` (u32, of x's shape; stochastic rounding only) gives the integers, below 2^N for N
/// random bits. They replace the integers that `key` gives for the element's row-major index.
/// Throws Error before anything is written.
CPD_API void Cast(const TensorView& x, const Format& format, const RoundingOptions& options,
                  const TensorView& out, const RandomKey& key = {},
                  const TensorView* random = nullptr);

/// Writes to out[i] the integer in [0, 2^N) that stochastic rounding by `key` uses for element
/// first + i. out: u32, contiguous.
CPD_API void RandomIntegers(const RoundingOptions& options, std::uint64_t first,
                            const TensorView& out, const RandomKey& key = {});

}  // namespace cpd
