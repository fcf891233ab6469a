// SPDX-License-Identifier: Apache-2.0
//
// The rounding of a value: the mode, what overflow gives, and where random bits come from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cpd/export.h"
#include "cpd/spec/names.h"

namespace cpd {

enum class Rounding : std::uint8_t {
  nearest_even,  ///< ties to the even code
  nearest_away,  ///< ties away from zero
  toward_zero,
  up,      ///< toward +Inf
  down,    ///< toward -Inf
  to_odd,  ///< an inexact result takes the neighbor with the odd code
  stochastic,
};

/// `ieee`: overflow gives Inf, or NaN where there is no Inf, or the max where there is neither;
/// inward-directed modes give the max. `saturate`: always the max, for an infinite input too.
enum class Overflow : std::uint8_t { ieee, saturate };

/// Stochastic rounding by N random bits R of the fraction nu of the gap (IEEE P3109's names):
/// away from zero iff  A: floor(nu 2^N) + R >= 2^N;  B: floor(nu 2^(N+1)) + 2R + 1 >= 2^(N+1);
/// C: RNITE(nu 2^N) + R >= 2^N.
enum class Variant : std::uint8_t { A, B, C };

constexpr int kMaxRandomBits = 24;

/// Options of every rounding. A call's RandomKey (random_key.h) selects the random bits of mode
/// stochastic; variant and random_bits have no effect on other modes.
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
/// All names, each at its enumerator's place.
CPD_API std::span<const std::string_view> NamesOf(Rounding mode);
CPD_API std::span<const std::string_view> NamesOf(Overflow overflow);
CPD_API std::span<const std::string_view> NamesOf(Variant variant);

}  // namespace cpd
