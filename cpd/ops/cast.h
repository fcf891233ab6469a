// SPDX-License-Identifier: Apache-2.0
//
// Casts of tensors into a format, and the random integers that a cast draws.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// out[i] = x[i] rounded once into `format`, stored in out's type, which must hold the format
/// (CheckStorage). x and out: fp32, fp64, bf16 or fp16, equal shapes, any strides. An fp64 input is
/// rounded from its 53 bits. out may be x itself; any other overlap is undefined. `random` (u32,
/// x's shape; stochastic only) gives the integers R < 2^N, in place of the integers of `key` at the
/// element's row-major index. Throws Error before anything is written.
CPD_API void Cast(const TensorView& x, const Format& format, const RoundingOptions& options,
                  const TensorView& out, const RandomKey& key = {},
                  const TensorView* random = nullptr);

/// out[i] = the integer in [0, 2^N) that stochastic rounding by `key` uses for element first + i.
/// out: u32, contiguous.
CPD_API void RandomIntegers(const RoundingOptions& options, std::uint64_t first,
                            const TensorView& out, const RandomKey& key = {});

}  // namespace cpd
