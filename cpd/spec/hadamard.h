// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms of groups of n neighboring values: x' = (1 / sqrt n) H diag(s) x. H is
// Sylvester's matrix of n rows: entry (i, j) is -1 to the power of the number of ones that i and j
// have in common in binary. s is a vector of signs. The inverse is the transpose, (1 / sqrt n)
// diag(s) H.
//
// The steps are computed in this order, in binary32, or in binary64 if the result is rounded into
// bf16:
// 1. signs (forward transform): exact;
// 2. log2 n stages, at distances d = 1, 2, 4, …. A stage takes values i and i + d, where bit d of
//   i is clear. The first becomes their sum, and the second becomes the first minus the second,
//   each rounded once;
// 3. multiplication by 1 / sqrt n, which is itself rounded to nearest. If log2 n is even, the
//   factor is a power of two, so only underflow and overflow round;
// 4. signs (inverse transform): exact;
// 5. for bf16, one rounding into bf16, to nearest-even. Before that rounding, an exact zero
//   becomes +0, as in a matrix product, whose sums start from +0.
//
// The stages are exact in binary64 under one condition: the significands of the inputs have p bits,
// and the exponents of nonzero inputs differ by up to 53 - p - log2 n (41 for bf16 inputs and n =
// 16). If log2 n is even, the bf16 result is then the exact result rounded once. Sums of bf16
// values stay within binary64's range, but could leave binary32's. A NaN result is always CPD's
// quiet NaN.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "cpd/export.h"
#include "cpd/spec/fields.h"
#include "cpd/spec/format.h"

namespace cpd {

/// A Hadamard transform: the size of a group, the inputs whose sign changes, and the format of the
/// result.
struct Hadamard {
  static constexpr int kMostSize = 128;
  /// The signs of inputs. Bit i % 32 of word i / 32 is set if input i is multiplied by -1.
  using Signs = std::array<std::uint32_t, kMostSize / 32>;
  /// The signs of Transformer Engine's transform of 16 inputs: + + + - + - - - - - - + - + - -.
  static constexpr Signs kTe{0xD7E8U};

  int size = 16;  ///< a power of two, 2…128
  Signs signs{};
  bool to_bf16 = false;  ///< the result is rounded into bf16

  [[nodiscard]] constexpr bool negates(int i) const {
    return (signs[static_cast<std::size_t>(i / 32)] >> (i % 32) & 1U) != 0;
  }
  friend bool operator==(const Hadamard&, const Hadamard&) = default;
};

/// Throws Error unless the size is a power of two, 2…128, and `signs` has set bits only for inputs
/// below the size.
CPD_API void Check(const Hadamard& transform);
/// Returns the canonical text: `hadamard16`, `hadamard16:te:bf16`, `hadamard32:signs=0x8000ff01`.
CPD_API std::string ToString(const Hadamard& transform);
/// Reads the text of a transform. Throws Error for any other text.
CPD_API Hadamard ParseHadamard(std::string_view text);
/// Returns the names and values of the fields of a transform. `signs` is a text of hexadecimal
/// digits.
CPD_API Fields FieldsOf(const Hadamard& transform);

}  // namespace cpd
