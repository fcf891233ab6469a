// SPDX-License-Identifier: Apache-2.0
//
// A matrix unit's rule by itself.
#pragma once

#include <string>
#include <string_view>

#include "cpd/numeric/accumulator.h"

namespace cpd {

CPD_API Adder ParseAdder(std::string_view name);
CPD_API std::string ToString(Adder adder);

/// Throws Error where a field is out of range: what is given and what is allowed.
CPD_API void Check(const BlockFma& unit);

/// The options of a unit as they stand in an accumulator's text, `a=fp16 b=fp16 block=4 …`.
/// ParseBlockFma(ToString(u)) gives u.
CPD_API std::string ToString(const BlockFma& unit);
CPD_API BlockFma ParseBlockFma(std::string_view text);

/// The binary32 pattern of the NaN that a preset's unit gives, `7FFFFFFF`; of fp16 results its
/// first half. Empty where nothing tells. CPD's own results hold its one quiet NaN.
CPD_API std::string PresetNan(std::string_view name);

/// Takes an option of a unit's text; false where there is none of that name.
bool ParseUnitOption(BlockFma& unit, std::string_view name, std::string_view text);

}  // namespace cpd
