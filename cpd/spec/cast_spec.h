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

/// A cast to a format or to a scaled format. The fields determine how values or elements are
/// rounded, and how scales are computed.
struct CastSpec {
  /// The way in which a scale follows from a history of largest magnitudes: from their maximum, or
  /// from the most recent one.
  enum class Amax : std::uint8_t { max, most_recent };
  static constexpr int kMostHistory = 1 << 20;

  std::variant<Format, Scaled> format = kFp32;
  /// In texts, the default of `overflow` is `saturate` for a scaled format, else `ieee`.
  RoundingOptions rounding{};
  /// Scales are computed from the values, but elements from factor * value. The factor is above 0
  /// and at most 1.
  double factor = 1;
  /// The number of past steps whose largest magnitudes determine the next scale (delayed scaling).
  /// 0: the tensor itself determines the scale.
  int history = 0;
  Amax amax = Amax::max;

  /// Returns the scaled format, or null if the format has no scales.
  [[nodiscard]] const Scaled* scaled() const { return std::get_if<Scaled>(&format); }
};

/// Throws Error if a field is out of range or has no effect, or if the format's scales do not
/// support the `factor` or the `history` of largest magnitudes.
CPD_API void Check(const CastSpec& cast);

/// Returns the names of all enumerators of Amax, in the order of their values.
CPD_API std::span<const std::string_view> NamesOf(CastSpec::Amax amax);
/// Returns the canonical text, `e4m3 rounding=stochastic random_bits=8` or `mxfp4 factor=0.75`: the
/// format, then every option that differs from its default. Throws Error as Check does.
CPD_API std::string ToString(const CastSpec& cast);
/// Reads the text of a cast. Options may stand anywhere after the format's first word, and
/// `rounding=` may be left out, as in `e4m3 stochastic`. ParseCastSpec(ToString(c)) equals c.
/// Throws Error for any other text.
CPD_API CastSpec ParseCastSpec(std::string_view text);
template <>
CPD_API CastSpec Make<CastSpec>(std::string_view text, std::span<const Option> keys);
/// The keys of a cast: `format`, then the options of the rounding. A scaled format also has the
/// other options.
template <>
CPD_API Keys<CastSpec> KeysOf<CastSpec>();

/// Returns whether the result does not depend on the axis of the blocks. This holds for a format
/// without scales, for one scale for a tensor, and for square blocks, if there is no transform.
CPD_API bool IsWhole(const CastSpec& cast);

}  // namespace cpd
