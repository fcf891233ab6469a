// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "cpd/spec/fields.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// A cast: the format, and how it rounds.
struct CastSpec {
  Format format = kFp32;
  RoundingOptions rounding{};
};

/// The canonical text, `e4m3 rounding=stochastic random_bits=8`: the format, then every option that
/// is not its default; seed and stream are left out. ParseCastSpec(ToString(c)) gives c, but for
/// seed and stream.
CPD_API std::string ToString(const CastSpec& cast);
/// Throws Error where it is no such text.
CPD_API CastSpec ParseCastSpec(std::string_view text);
CPD_API Fields FieldsOf(const CastSpec& cast);

}  // namespace cpd
