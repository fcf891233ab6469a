// SPDX-License-Identifier: Apache-2.0
//
// The rounding of a value: the mode, the result of overflow, and the rule for random bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cpd/export.h"
#include "cpd/spec/names.h"

namespace cpd {

/// The rounding mode. An exact zero sum is -0 when rounding down (IEEE 754, 6.3), else +0 unless
/// both operands are -0. In a format without subnormals, to_odd gives the least normal number for
/// any inexact value below it.
enum class Rounding : std::uint8_t {
  nearest_even,  ///< ties to the even code
  nearest_away,  ///< ties away from zero
  toward_zero,
  up,      ///< toward +Inf
  down,    ///< toward -Inf
  to_odd,  ///< an inexact result takes the neighbor with the odd code
  stochastic,
};

/// The result of overflow. `ieee`: Inf; NaN if the format has no Inf; the largest value if it has
/// neither. Modes that round inward give the largest value, but an infinite input overflows in
/// every mode. `saturate`: always the largest value, also for an infinite input. In P3109's words,
/// these are SatNone and SatFinite.
///
/// With `ieee`, a negative number that does not round to zero becomes NaN in an unsigned format
/// with NaN. In e8m0, every nonzero negative number becomes NaN. -Inf becomes NaN in every mode. In
/// P3109's formats, finite negative numbers become 0 in the modes toward_zero and up.
enum class Overflow : std::uint8_t { ieee, saturate };

/// Stochastic rounding by N random bits R. Let nu be the fraction of the gap between two numbers
/// (the names are IEEE P3109's). The number rounds away from zero if and only if
/// - A: floor(nu 2^N) + R >= 2^N;
/// - B: floor(nu 2^(N+1)) + 2R + 1 >= 2^(N+1);
/// - C: RNITE(nu 2^N) + R >= 2^N, where RNITE rounds to the nearest integer, ties to even.
enum class Variant : std::uint8_t { A, B, C };

constexpr int kMaxRandomBits = 24;

/// The options of a rounding. The RandomKey of a call (random_key.h) selects the random bits of the
/// mode stochastic. variant and random_bits have no effect in other modes.
struct RoundingOptions {
  Rounding mode = Rounding::nearest_even;
  Overflow overflow = Overflow::ieee;
  Variant variant = Variant::A;
  int random_bits = kMaxRandomBits;  ///< N, 1…24
};

/// Throws Error for a mode, an overflow or a variant that is not an enumerator, and for random_bits
/// other than 1…24.
CPD_API void Check(const RoundingOptions& options);

CPD_API Rounding ParseRounding(std::string_view name);
CPD_API Overflow ParseOverflow(std::string_view name);
CPD_API Variant ParseVariant(std::string_view name);
/// Return the names of all enumerators of the argument's type, in the order of their values.
CPD_API std::span<const std::string_view> NamesOf(Rounding mode);
CPD_API std::span<const std::string_view> NamesOf(Overflow overflow);
CPD_API std::span<const std::string_view> NamesOf(Variant variant);

}  // namespace cpd
