// SPDX-License-Identifier: Apache-2.0
//
// Matrix units by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cpd/spec/accumulator.h"
#include "cpd/spec/names.h"

namespace cpd {

/// A matrix unit by name (`v100`, `a100`, `h100-fp8`, …) with fp32 or fp16 output: an Accumulator
/// of Scheme::block_fma. Throws Error for a name that is not known, and for results in a format
/// for which the unit has no known rule.
CPD_API Accumulator Preset(std::string_view name, const Format& output = kFp32);

/// The matrix units. Evidence is `replayed` (against published results of the unit) or
/// `literature`.
CPD_API std::vector<NamedSpec> Presets();

/// The binary32 pattern of the NaN that a preset's unit gives, `7FFFFFFF`; of fp16 results its
/// first half. Empty where nothing tells. CPD's own results hold its one quiet NaN.
CPD_API std::string PresetNan(std::string_view name);

/// Returns whether a text's first word can only be meant as a matrix unit's: the name of a preset,
/// or with the hyphen that all but two have and no format.
CPD_API bool NamesPreset(std::string_view word);

}  // namespace cpd
