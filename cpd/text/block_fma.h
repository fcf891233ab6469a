// SPDX-License-Identifier: Apache-2.0
//
// A matrix unit's rule by itself.
#pragma once

#include <string>
#include <string_view>

#include "cpd/numeric/accumulator.h"

namespace cpd {

/// Throws Error where a field is out of range: what is given and what is allowed.
CPD_API void Check(const BlockFma& unit);

/// The options of a unit as they stand in an accumulator's text, `a=fp16 b=fp16 block=4 …`.
/// ParseBlockFma(ToString(u)) gives u.
CPD_API std::string ToString(const BlockFma& unit);
CPD_API BlockFma ParseBlockFma(std::string_view text);

/// Takes an option of a unit's text; false where there is none of that name.
bool ParseUnitOption(BlockFma& unit, std::string_view name, std::string_view text);

}  // namespace cpd
