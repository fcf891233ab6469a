// SPDX-License-Identifier: Apache-2.0
//
// What an operand of a product is cast to: a format without scales or a scaled one, and how.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "cpd/spec/cast_spec.h"
#include "cpd/spec/rounding.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// A cast to a scaled format: the format, how its elements round, and where its scales come from.
struct ScaledCast {
  /// Which of a history's largest magnitudes the scale follows.
  enum class Amax : std::uint8_t { max, most_recent };
  static constexpr int kMostHistory = 1 << 20;

  Scaled scaled{};
  RoundingOptions rounding{.overflow = Overflow::saturate};
  /// Scales follow from the values, elements from factor * value: above 0, at most 1.
  double factor = 1;
  /// Of how many steps largest magnitudes are kept, of which the next step's scale follows (delayed
  /// scaling); 0: the scale follows from the tensor itself.
  int history = 0;
  Amax amax = Amax::max;
};

using OperandCast = std::variant<CastSpec, ScaledCast>;

/// Throws Error where a field is out of range, or a factor or a history does not go with the
/// format's scales.
CPD_API void Check(const ScaledCast& cast);

CPD_API std::string ToString(ScaledCast::Amax amax);
/// All names, each at its enumerator's place.
CPD_API std::span<const std::string_view> AmaxNames();
/// The canonical text, `mxfp4 rounding=stochastic factor=0.75`: the scaled format's, then every
/// option that is not its default (overflow's is saturate); seed and stream are left out.
CPD_API std::string ToString(const ScaledCast& cast);
CPD_API std::string ToString(const OperandCast& cast);
/// A CastSpec's text or a ScaledCast's, whose options may stand anywhere behind the format's first
/// word. Throws Error.
CPD_API OperandCast ParseOperandCast(std::string_view text);
CPD_API Fields FieldsOf(const ScaledCast& cast);

/// Whether the result is the same along whichever axis blocks lie: a format without scales, one
/// scale a tensor, or square blocks; no transform.
CPD_API bool IsWhole(const OperandCast& cast);

}  // namespace cpd
