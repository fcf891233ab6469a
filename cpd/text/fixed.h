// SPDX-License-Identifier: Apache-2.0
//
// An integer's sum by itself.
#pragma once

#include <string>
#include <string_view>

#include "cpd/numeric/accumulator.h"

namespace cpd {

/// Throws Error where a field is out of range: what is given and what is allowed.
CPD_API void Check(const FixedPoint& point);

/// The options of an integer as they stand in an accumulator's text, `width=40 fraction=12 …`.
/// ParseFixedPoint(ToString(p)) gives p.
CPD_API std::string ToString(const FixedPoint& point);
CPD_API FixedPoint ParseFixedPoint(std::string_view text);

/// Takes an option of an integer's text; false where there is none of that name.
bool ParseFixedOption(FixedPoint& point, std::string_view name, std::string_view text);

/// Whether a text's first word is an integer's short name: `fixed<40,12>` (width and fraction), or
/// `int26` and wider (fraction 0): narrower ones are formats.
CPD_API bool NamesFixed(std::string_view word);
/// What it names, wrapping and rounding toward zero.
CPD_API FixedPoint FixedNamed(std::string_view word);

}  // namespace cpd
