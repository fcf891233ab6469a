// SPDX-License-Identifier: Apache-2.0
//
// Matrix units by their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cpd/spec/accumulator.h"
#include "cpd/spec/names.h"

namespace cpd {

/// Returns the accumulator of a matrix unit (`v100`, `a100`, `h100-fp8`, …) with fp32 or fp16
/// output. Its scheme is Scheme::block_fma. Throws Error for an unknown name, and for an output
/// format for which the matrix unit has no known rule.
CPD_API Accumulator Preset(std::string_view name, const Format& output = kFp32);

/// Returns all matrix units. Their evidence is `replayed` (against published results of the matrix
/// unit) or `literature`.
CPD_API std::vector<NamedSpec> Presets();

/// Returns the binary32 pattern of the NaN that a preset's hardware gives, `7FFFFFFF`. For fp16
/// results, the pattern is its first half. Returns an empty text if the pattern is not known. CPD's
/// products with the preset give CPD's quiet NaN, not this pattern.
CPD_API std::string PresetNan(std::string_view name);

/// Returns whether the first word of a text can only be meant as the name of a matrix unit. This
/// holds for the name of a preset, and for a word with a hyphen, which almost all presets and no
/// formats have.
CPD_API bool NamesPreset(std::string_view word);

}  // namespace cpd
