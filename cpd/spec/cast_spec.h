// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "cpd/spec/fields.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// A cast to a format, or to a scaled format: how values or elements round, and where scales come
/// from.
struct CastSpec {
  /// The magnitude of a history that determines the scale.
  enum class Amax : std::uint8_t { max, most_recent };
  static constexpr int kMostHistory = 1 << 20;

  std::variant<Format, Scaled> format = kFp32;
  /// In texts the default of overflow is `saturate` for a scaled format, else `ieee`.
  RoundingOptions rounding{};
  /// Scales follow from the values, elements from factor * value: above 0, at most 1.
  double factor = 1;
  /// The number of past steps whose largest magnitudes determine the next scale (delayed scaling);
  /// 0: the scale follows from the tensor itself.
  int history = 0;
  Amax amax = Amax::max;

  /// The scaled format, or null.
  [[nodiscard]] const Scaled* scaled() const { return std::get_if<Scaled>(&format); }
};

/// Throws Error where a field is out of range or has no effect, or where a factor or a history does
/// not fit the format's scales.
CPD_API void Check(const CastSpec& cast);

/// All names, each at its enumerator's place.
CPD_API std::span<const std::string_view> NamesOf(CastSpec::Amax amax);
/// The canonical text, `e4m3 rounding=stochastic random_bits=8` or `mxfp4 factor=0.75`: the format,
/// then every option that is not its default. Throws Error as Check.
CPD_API std::string ToString(const CastSpec& cast);
/// Options may stand anywhere after the format's first word, and `rounding=` may be left out, as in
/// `e4m3 stochastic`. ParseCastSpec(ToString(c)) is c. Throws Error.
CPD_API CastSpec ParseCastSpec(std::string_view text);
template <>
CPD_API CastSpec Make<CastSpec>(std::string_view text, std::span<const Option> keys);
/// `format`, then the options of a cast; a scaled format has the others.
template <>
CPD_API Keys<CastSpec> KeysOf<CastSpec>();

/// Returns true if the result does not depend on the axis of the blocks: for a format without
/// scales, one scale a tensor, or square blocks; without a transform.
CPD_API bool IsWhole(const CastSpec& cast);

}  // namespace cpd
