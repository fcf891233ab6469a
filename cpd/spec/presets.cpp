// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/presets.h"

#include <algorithm>
#include <array>
#include <optional>

#include "cpd/spec/format_names.h"

namespace cpd {
namespace {

constexpr Format kFp16{.exp = 5, .man = 10, .bias = 15};
constexpr Format kBf16{.exp = 8, .man = 7, .bias = 127};
constexpr Format kTf32{.exp = 8, .man = 10, .bias = 127};
constexpr Format kE4m3fnuz{.exp = 4, .man = 3, .bias = 8, .encoding = Encoding::fnuz};
/// The format of the sums that FP8 matrix units store: fp32 with only 13 fraction bits.
constexpr Format kE8m13{.exp = 8, .man = 13, .bias = 127};

constexpr std::string_view kReplayed = "replayed";
constexpr std::string_view kLiterature = "literature";
constexpr std::string_view kVectors =
    "5,000 published dot products of the GPU (MATLAB-tensor-core, arXiv 2512.07004)";
constexpr std::string_view kFp8Vectors =
    "10,000 published dot products of the GPU, half of them with fp16 results (MATLAB-tensor-core, "
    "arXiv 2512.07004)";
constexpr std::string_view kMmaSyncVectors =
    "10,000 published dot products of H100 through mma.sync with fp16 results (MATLAB-tensor-core, "
    "arXiv 2512.07004); with fp32 results b200-fp8's rule";
constexpr std::string_view kMmaSim = "MMA-Sim (arXiv 2511.10909)";
constexpr std::string_view kMmaSimResults = "MMA-Sim (arXiv 2511.10909), whose results it gives";
constexpr std::string_view kDeepSeek =
    "DeepSeek-V3 (arXiv 2412.19437, section 3.3.2) for the promotion; the unit is h100-fp8";

/// The rule by which a matrix unit computes fp16 results, if it supports them.
enum class Half : std::uint8_t {
  none,
  same,  ///< as the rule for fp32, with the sum rounded to nearest into fp16
  /// The matrix unit adds FP8 products by two fp16 instructions: one for k mod 4 in {0, 1}, the
  /// other for all other k. Both instructions start from +0, and the addend is added to their
  /// results.
  pairs,
};

struct Unit {
  std::string_view name;
  Format operand;
  int block;
  int fraction_bits;
  int min_exponent;
  std::int64_t promote;
  std::string_view evidence;
  std::string_view source;
  Half half = Half::none;
  int half_exponent = 0;  ///< min_exponent with fp16 results
  std::optional<Format> scale{};
  int scale_block = BlockFma{}.scale_block;
  int dot = BlockFma{}.dot;
  Adder adder = Adder::aligned;
};

constexpr Unit Amd(std::string_view name, const Format& operand, int block, Adder adder) {
  const bool cuts = adder != Adder::exact && adder != Adder::flushed_pairs;
  Unit unit{.name = name,
            .operand = operand,
            .block = block,
            .fraction_bits = cuts ? 24 : BlockFma{}.fraction_bits,
            .min_exponent = cuts ? -126 : BlockFma{}.min_exponent,
            .promote = 0,
            .evidence = kLiterature,
            .source = kMmaSimResults};
  unit.adder = adder;
  return unit;
}

constexpr Unit WithScales(std::string_view name, const Format& operand, const Format& scale,
                          int scale_block) {
  const bool four_bits = operand == kE2m1;
  Unit unit{name, operand,     four_bits ? 64 : 32, four_bits ? 35 : 25, four_bits ? -139 : -133,
            0,    kLiterature, kMmaSimResults};
  unit.scale = scale;
  unit.scale_block = scale_block;
  unit.dot = four_bits ? 16 : 1;
  return unit;
}

// V100's least exponent with fp32 results is not published. It has no effect, because all nonzero
// numbers are above it.
constexpr std::array kUnits{
    Unit{"v100", kFp16, 4, 23, -133, 0, kReplayed, kVectors, Half::same, -19},
    Unit{"a100", kFp16, 8, 24, -132, 0, kLiterature, kMmaSim, Half::same, -20},
    Unit{"a100-bf16", kBf16, 8, 24, -132, 0, kLiterature, kMmaSim},
    Unit{"a100-tf32", kTf32, 4, 24, -132, 0, kLiterature, kMmaSim},
    Unit{"ada-fp16", kFp16, 8, 24, -132, 0, kLiterature, kMmaSim, Half::same, -20},
    Unit{"ada-bf16", kBf16, 8, 24, -132, 0, kLiterature, kMmaSim},
    Unit{"ada-tf32", kTf32, 4, 24, -132, 0, kLiterature, kMmaSim},
    Unit{"ada-fp8", kE4m3fn, 16, 13, -132, 0, kReplayed, kFp8Vectors, Half::same, -20},
    Unit{"h100-fp16", kFp16, 16, 25, -133, 0, kReplayed, kVectors, Half::same, -21},
    Unit{"h100-bf16", kBf16, 16, 25, -133, 0, kReplayed, kVectors},
    Unit{"h100-tf32", kTf32, 8, 25, -133, 0, kReplayed, kVectors},
    Unit{"h100-fp8", kE4m3fn, 32, 13, -139, 0, kReplayed, kVectors},
    Unit{"hopper-mma-fp8", kE4m3fn, 32, 25, -133, 32, kReplayed, kMmaSyncVectors, Half::pairs, -21},
    Unit{"b200-fp16", kFp16, 16, 25, -133, 0, kLiterature, kMmaSim, Half::same, -21},
    Unit{"b200-bf16", kBf16, 16, 25, -133, 0, kLiterature, kMmaSim},
    Unit{"b200-tf32", kTf32, 8, 25, -133, 0, kLiterature, kMmaSim},
    Unit{"b200-fp8", kE4m3fn, 32, 25, -133, 32, kReplayed, kFp8Vectors, Half::pairs, -21},
    Unit{"deepseek-promoted", kE4m3fn, 32, 13, -139, 128, kLiterature, kDeepSeek},
    WithScales("rtx-blackwell-mxfp8", kE4m3fn, kE8m0, 32),
    WithScales("rtx-blackwell-mxfp4", kE2m1, kE8m0, 32),
    WithScales("rtx-blackwell-nvfp4", kE2m1, kE4m3fn, 16),
    Unit{"turing-fp16", kFp16, 8, 24, -132, 0, kLiterature, kMmaSimResults, Half::same, -20},
    Unit{"rtx-blackwell-fp16", kFp16, 16, 25, -133, 0, kLiterature, kMmaSimResults, Half::same,
         -21},
    Unit{"rtx-blackwell-bf16", kBf16, 16, 25, -133, 0, kLiterature, kMmaSimResults},
    Unit{"rtx-blackwell-tf32", kTf32, 8, 25, -133, 0, kLiterature, kMmaSimResults},
    Unit{"rtx-blackwell-fp8", kE4m3fn, 32, 25, -133, 0, kLiterature, kMmaSimResults, Half::same,
         -21},
    Unit{"b200-tcgen05-fp16", kFp16, 16, 25, -133, 0, kLiterature, kMmaSimResults, Half::same, -21},
    Unit{"b200-tcgen05-bf16", kBf16, 16, 25, -133, 0, kLiterature, kMmaSimResults},
    Unit{"b200-tcgen05-tf32", kTf32, 8, 25, -133, 0, kLiterature, kMmaSimResults},
    Unit{"b200-tcgen05-fp8", kE4m3fn, 32, 25, -133, 0, kLiterature, kMmaSimResults, Half::same,
         -21},
    WithScales("b200-tcgen05-mxfp8", kE4m3fn, kE8m0, 32),
    WithScales("b200-tcgen05-mxfp4", kE2m1, kE8m0, 32),
    WithScales("b200-tcgen05-nvfp4", kE2m1, kE4m3fn, 16),
    Amd("cdna1-fp16", kFp16, 4, Adder::exact),
    Amd("cdna1-bf16", kBf16, 2, Adder::exact),
    Amd("cdna2-fp16", kFp16, 4, Adder::flushed_pairs),
    Amd("cdna2-bf16", kBf16, 2, Adder::flushed_pairs),
    Amd("cdna2-bf16-1k", kBf16, 4, Adder::flushed_pairs),
    Amd("cdna3-fp16", kFp16, 8, Adder::two_steps),
    Amd("cdna3-bf16", kBf16, 8, Adder::two_steps),
    Amd("cdna3-xf32", kTf32, 4, Adder::two_steps),
    Amd("cdna3-fp8", kE4m3fnuz, 16, Adder::two_steps_even),
};

/// Finds a matrix unit by its name, in any letter case.
const Unit* FindUnit(std::string_view name) {
  const auto* const found = std::ranges::find(kUnits, Lower(name), &Unit::name);
  return found == kUnits.end() ? nullptr : found;
}

const Unit& UnitNamed(std::string_view name) {
  if (const Unit* unit = FindUnit(name)) return *unit;
  std::array<std::string_view, kUnits.size()> names;
  std::ranges::transform(kUnits, names.begin(), &Unit::name);
  std::string known;
  for (const std::string_view one : names) known += (known.empty() ? "" : ", ") + std::string(one);
  throw Error("unknown preset " + Quoted(name) + "; there are " + known + DidYouMean(name, names));
}

void CheckOutput(const Unit& unit, const Format& output) {
  if (output == kFp32) return;
  const std::string name(unit.name);
  if (output != kFp16) {
    throw Error("preset " + name + ": output must be fp32 or fp16, got " + ToString(output));
  }
  if (unit.half != Half::none) return;
  std::string why = ", which is for fp16 operands";
  if (unit.adder != Adder::aligned) why = ", which AMD's units do not give";
  if (unit.operand == kE4m3fn && !unit.scale) {
    why = ": no known rule gives those of wgmma; those of mma.sync are preset hopper-mma-fp8's";
  }
  throw Error("preset " + name + ": output must be fp32, got fp16" + why);
}

/// Changes `rule`, the matrix unit's rule for fp32 results, to its rule for fp16 results.
void MakeHalf(BlockFma& rule, const Unit& unit) {
  rule.sum = kFp16;
  rule.rounding = Rounding::nearest_even;
  rule.min_exponent = unit.half_exponent;
  if (unit.half == Half::same) return;
  rule.block = 16;
  rule.promote = rule.group = 32;
}

std::string SummaryOf(const Unit& unit) {
  std::string text = std::to_string(unit.block) + " products of " + ToString(unit.operand);
  if (unit.scale) text += " with " + ToString(*unit.scale) + " scales";
  return text + " a block, results in fp32" + (unit.half == Half::none ? "" : " or fp16");
}

}  // namespace

bool NamesPreset(std::string_view word) {
  if (FindUnit(word) != nullptr) return true;
  const bool hyphen = word.find('-') != std::string_view::npos;
  return hyphen && word.find_first_of(":=( ") == std::string_view::npos &&
         FormatMeant(word).empty();
}

Accumulator Preset(std::string_view name, const Format& output) {
  const Unit& unit = UnitNamed(name);
  Check(output);
  CheckOutput(unit, output);
  BlockFma rule;
  rule.a = rule.b = unit.operand;
  rule.block = unit.block;
  rule.fraction_bits = unit.fraction_bits;
  rule.min_exponent = unit.min_exponent;
  rule.promote = unit.promote;
  // FP8 matrix units that align terms to 13 fraction bits store their sums with 13 fraction bits.
  rule.sum = unit.fraction_bits == kE8m13.man ? kE8m13 : kFp32;
  rule.scale = unit.scale;
  rule.scale_block = unit.scale_block;
  rule.dot = unit.dot;
  rule.adder = unit.adder;
  if (unit.adder != Adder::aligned) rule.rounding = Rounding::nearest_even;
  if (output == kFp16) MakeHalf(rule, unit);
  Accumulator accumulator;
  accumulator.format = output;
  accumulator.scheme = Scheme::block_fma;
  accumulator.unit = rule;
  return accumulator;
}

std::vector<NamedSpec> Presets() {
  std::vector<NamedSpec> all;
  all.reserve(kUnits.size());
  for (const Unit& unit : kUnits) {
    all.push_back({.name = std::string(unit.name),
                   .summary = SummaryOf(unit),
                   .source = std::string(unit.source),
                   .evidence = std::string(unit.evidence)});
  }
  return all;
}

std::string PresetNan(std::string_view name) {
  return UnitNamed(name).adder == Adder::aligned ? "7FFFFFFF" : "";
}

}  // namespace cpd
