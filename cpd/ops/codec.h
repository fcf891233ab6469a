// SPDX-License-Identifier: Apache-2.0
//
// Packed codes of tensors: encodes values into codes, and decodes codes.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Returns the number of bytes of n packed codes, ceil(n * bits / 8). Throws Error if n is negative
/// or the bytes are not below 2^63.
CPD_API std::int64_t PackedBytes(const Format& format, std::int64_t n);

/// Rounds as Cast does and writes the codes in row-major order, without gaps, least significant bit
/// first. The bits after the last code are 0. packed: u8, contiguous, PackedBytes(format, n) long.
/// Throws Error for a NaN for which the format has no code, and names the element's index; `packed`
/// is then unspecified.
CPD_API void Encode(const TensorView& x, const Format& format, const RoundingOptions& options,
                    const TensorView& packed, const RandomKey& key = {},
                    const TensorView* random = nullptr);

/// Decodes each code and writes its value to `out`. packed: u8, contiguous, PackedBytes(format,
/// out.size()) long. out: any float type that holds the format, any strides. Every bit pattern is a
/// valid code.
CPD_API void Decode(const TensorView& packed, const Format& format, const TensorView& out);

}  // namespace cpd
