// SPDX-License-Identifier: Apache-2.0
//
// The constants of a format that stochastic.h needs to round stochastic sums into the format.
#pragma once

#include <cstdint>
#include <limits>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/format.h"

namespace cpd {

struct StochasticFormat {
  std::int32_t man = 0;
  double quantum = 0;  ///< least spacing
  double max = 0;
  double overflow = 0;  ///< replaces larger numbers
  bool has_negative_zero = true;
};

/// Returns whether stochastic.h can round into a format. The format must have signs and a zero, and
/// subnormals unless it has no mantissa bits.
constexpr bool splits_stochastic(const Format& format) {
  return format.is_signed && format.has_zero() && (format.subnormals || format.man == 0);
}

constexpr StochasticFormat stochastic_format(const Format& format, const RoundPlan& plan) {
  const double overflow =
      plan.overflow_is_nan ? std::numeric_limits<double>::quiet_NaN() : plan.overflow_value;
  return {format.man, Format::power_of_two(format.min_quantum_exponent()), format.max(), overflow,
          format.has_negative_zero()};
}

/// Returns whether binary32 suffices to round into a format of p significant bits with N =
/// random_bits. Binary32 must hold multiples of 2^-N times the least spacing. A magnet (a number
/// whose addition rounds) has two leading bits and then p + N more bits, and must also be a
/// binary32 number. The least spacing must be a normal number, unless the format has binary32's own
/// exponents.
constexpr bool stochastic_fits_binary32(const Format& format, int random_bits) {
  const int quantum = format.min_quantum_exponent();
  return format.precision() + random_bits <= 22 && (quantum >= -126 || format.emin() == -126) &&
         quantum - random_bits >= -149 && quantum - random_bits + 24 <= 127;
}

}  // namespace cpd
