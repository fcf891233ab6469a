// SPDX-License-Identifier: Apache-2.0
//
// Packed codes of tensors: casts into them, and their values.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The number of bytes of n packed codes: ceil(n * bits / 8). Throws Error where n is negative or
/// the bytes are not below 2^63.
CPD_API std::int64_t PackedBytes(const Format& format, std::int64_t n);

/// Rounds like Cast and writes the codes, least significant bit first and without gaps, in
/// row-major order; the bits after the last code are 0. packed: u8, contiguous,
/// PackedBytes(format, n) long. A NaN for which the format has no code throws Error naming its
/// index; `packed` is then unspecified.
CPD_API void Encode(const TensorView& x, const Format& format, const RoundingOptions& options,
                    const TensorView& packed, const RandomKey& key = {},
                    const TensorView* random = nullptr);

/// out = the value of each code. packed: u8, contiguous, PackedBytes(format, out.size()) long; out:
/// any float type that holds the format, any strides. Every bit pattern has a value.
CPD_API void Decode(const TensorView& packed, const Format& format, const TensorView& out);

}  // namespace cpd
