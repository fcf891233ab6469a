// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cpd/spec/accumulator.h"
#include "cpd/spec/fields.h"

namespace cpd {

/// What an accumulator is made of, as a caller gives it; formats by their texts. Left out: what
/// Accumulator has by default, and the unit's own format.
struct AccumulatorArguments {
  std::optional<std::string> format{};   ///< or, alone, a preset's name, `int32` or a whole text
  std::optional<std::string> scheme{};   ///< one of SchemeNames()
  std::optional<std::string> product{};  ///< a format or `exact`
  std::optional<std::string> inner{};
  std::int64_t chunk = Accumulator{}.chunk;
  std::optional<std::string> preset{};
  std::optional<BlockFma> unit{};
  std::optional<std::string> a{}, b{};  ///< the formats that a preset's operands hold
  std::optional<FixedPoint> fixed{};    ///< goes with scheme fixed; format is then fp32 by default
  RoundingOptions rounding{};
};

/// Throws Error where the arguments do not fit together.
CPD_API Accumulator MakeAccumulator(const AccumulatorArguments& arguments);
/// The accumulator of arguments by their names above and `rounding`, `overflow`, `random_bits` and
/// `variant`; unit and fixed are texts. Throws Error for any other name.
CPD_API Accumulator MakeAccumulator(std::span<const Option> arguments);

/// The sum of a product's transpose: a unit's a and b change places.
CPD_API Accumulator Swapped(Accumulator accumulator);
/// The same sum of terms that are no products: they are rounded only as they are added.
CPD_API Accumulator OfTerms(Accumulator accumulator);

}  // namespace cpd
