// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms of groups of neighboring values: x' = (1 / sqrt n) H diag(s) x. H is
// Sylvester's matrix of n rows: entry (i, j) is -1 to the power of the number of ones that i and j
// share in binary. s are signs. The inverse is the transpose, (1 / sqrt n) diag(s) H.
//
// The steps are in binary32, or in binary64 if the result is rounded into bf16, in this order:
//   1. signs (forward): exact;
//   2. log2 n stages, at distances d = 1, 2, 4, …: of values i and i + d, bit d of i clear, the
//      first becomes their sum and the second the first minus the second, each rounded once;
//   3. multiplication by 1 / sqrt n, itself rounded to nearest: by a power of two if log2 n is
//      even, so that only underflow and overflow round;
//   4. signs (inverse): exact;
//   5. for bf16, one rounding into bf16, to nearest-even; before it an exact zero becomes +0, as in
//      a matrix product, whose sums start from +0.
// The stages are exact in binary64, and the bf16 result is then the exact one rounded once (log2 n
// even), under one condition: the inputs' significands have p bits and the exponents of nonzero
// inputs differ by up to 53 - p - log2 n. That is 41 for bf16 inputs and n = 16. Sums of bf16
// values stay within binary64's range, but could leave binary32's. A NaN result is the quiet NaN of
// CPD, whatever the inputs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "cpd/export.h"
#include "cpd/spec/fields.h"
#include "cpd/spec/format.h"

namespace cpd {

/// A transform: how many values a group has, which inputs change sign, and what the result is.
struct Hadamard {
  static constexpr int kMostSize = 128;
  /// Bit i % 32 of word i / 32 is set where input i is multiplied by -1.
  using Signs = std::array<std::uint32_t, kMostSize / 32>;
  /// Transformer Engine's, of 16 inputs: + + + - + - - - - - - + - + - -.
  static constexpr Signs kTe{0xD7E8U};

  int size = 16;  ///< a power of two, 2…128
  Signs signs{};
  bool to_bf16 = false;  ///< the result is rounded into bf16

  [[nodiscard]] constexpr bool negates(int i) const {
    return (signs[static_cast<std::size_t>(i / 32)] >> (i % 32) & 1U) != 0;
  }
  friend bool operator==(const Hadamard&, const Hadamard&) = default;
};

/// Throws Error unless the size is a power of two, 2…128, and no sign lies beyond it.
CPD_API void Check(const Hadamard& transform);
/// The canonical text: `hadamard16`, `hadamard16:te:bf16`, `hadamard32:signs=0x8000ff01`.
CPD_API std::string ToString(const Hadamard& transform);
/// Throws Error if the text is not such a transform.
CPD_API Hadamard ParseHadamard(std::string_view text);
/// `signs` as hexadecimal digits.
CPD_API Fields FieldsOf(const Hadamard& transform);

}  // namespace cpd
