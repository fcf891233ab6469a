// SPDX-License-Identifier: Apache-2.0
//
// The formats into which stochastic.h rounds stochastic sums, as the constants that it needs.
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
  double overflow = 0;  ///< what takes the place of larger numbers
  bool has_negative_zero = true;
};

/// Returns whether stochastic.h rounds into a format: a grid down to zero, with signs.
constexpr bool splits_stochastic(const Format& format) {
  return format.is_signed && format.has_zero() && (format.subnormals || format.man == 0);
}

constexpr StochasticFormat stochastic_format(const Format& format, const RoundPlan& plan) {
  const double overflow =
      plan.overflow_is_nan ? std::numeric_limits<double>::quiet_NaN() : plan.overflow_value;
  return {format.man, Format::power_of_two(format.min_quantum_exponent()), format.max(), overflow,
          format.has_negative_zero()};
}

/// Returns whether binary32 holds p + N bits after a magnet's leading two, 2^-N least spacings,
/// their least magnet, and the least spacing as a normal number (unless the format has binary32's
/// own exponents).
constexpr bool stochastic_fits_binary32(const Format& format, int random_bits) {
  const int quantum = format.min_quantum_exponent();
  return format.precision() + random_bits <= 22 && (quantum >= -126 || format.emin() == -126) &&
         quantum - random_bits >= -149 && quantum - random_bits + 24 <= 127;
}

}  // namespace cpd
