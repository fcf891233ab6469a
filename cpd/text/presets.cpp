// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>

#include "cpd/numeric/accumulator.h"
#include "cpd/text/format_names.h"
#include "cpd/text/names.h"

namespace cpd {
namespace {

constexpr Format kFp16{.exp = 5, .man = 10, .bias = 15};
constexpr Format kBf16{.exp = 8, .man = 7, .bias = 127};
constexpr Format kTf32{.exp = 8, .man = 10, .bias = 127};
constexpr Format kE4m3fn{.exp = 4, .man = 3, .bias = 7, .encoding = Encoding::fn};
constexpr Format kE2m1{.exp = 2, .man = 1, .bias = 1, .encoding = Encoding::finite};
constexpr Format kE8m0{
    .exp = 8, .man = 0, .bias = 127, .encoding = Encoding::e8m0, .is_signed = false};
constexpr Format kE8m13{.exp = 8, .man = 13, .bias = 127};  ///< what FP8 units keep of fp32

constexpr std::string_view kReplayed = "replayed";
constexpr std::string_view kLiterature = "literature";
constexpr std::string_view kVectors =
    "5,000 published dot products of the GPU (MATLAB-tensor-core, arXiv 2512.07004)";
constexpr std::string_view kMmaSim = "MMA-Sim (arXiv 2511.10909)";
constexpr std::string_view kMmaSimScales = "MMA-Sim (arXiv 2511.10909), whose results it gives";
constexpr std::string_view kDeepSeek =
    "DeepSeek-V3 (arXiv 2412.19437, section 3.3.2) for the promotion; the unit is h100-fp8";

struct Unit {
  std::string_view name;
  Format operand;
  int block;
  int fraction_bits;
  int min_exponent;
  std::int64_t promote;
  std::string_view evidence;
  std::string_view source;
  std::optional<Format> scale{};
  int scale_block = BlockFma{}.scale_block;
  int dot = BlockFma{}.dot;
};

// V100's least exponent is published nowhere and never counts: what is not zero lies above it.
constexpr std::array<Unit, 19> kUnits{{
    {"v100", kFp16, 4, 23, -133, 0, kReplayed, kVectors},
    {"a100", kFp16, 8, 24, -132, 0, kLiterature, kMmaSim},
    {"a100-bf16", kBf16, 8, 24, -132, 0, kLiterature, kMmaSim},
    {"a100-tf32", kTf32, 4, 24, -132, 0, kLiterature, kMmaSim},
    {"ada-fp16", kFp16, 8, 24, -132, 0, kLiterature, kMmaSim},
    {"ada-bf16", kBf16, 8, 24, -132, 0, kLiterature, kMmaSim},
    {"ada-tf32", kTf32, 4, 24, -132, 0, kLiterature, kMmaSim},
    {"ada-fp8", kE4m3fn, 16, 13, -132, 0, kLiterature, kMmaSim},
    {"h100-fp16", kFp16, 16, 25, -133, 0, kReplayed, kVectors},
    {"h100-bf16", kBf16, 16, 25, -133, 0, kReplayed, kVectors},
    {"h100-tf32", kTf32, 8, 25, -133, 0, kReplayed, kVectors},
    {"h100-fp8", kE4m3fn, 32, 13, -139, 0, kReplayed, kVectors},
    {"b200-fp16", kFp16, 16, 25, -133, 0, kLiterature, kMmaSim},
    {"b200-bf16", kBf16, 16, 25, -133, 0, kLiterature, kMmaSim},
    {"b200-tf32", kTf32, 8, 25, -133, 0, kLiterature, kMmaSim},
    {"deepseek-promoted", kE4m3fn, 32, 13, -139, 128, kLiterature, kDeepSeek},
    {"rtx-blackwell-mxfp8", kE4m3fn, 32, 25, -133, 0, kLiterature, kMmaSimScales, kE8m0},
    {"rtx-blackwell-mxfp4", kE2m1, 64, 35, -139, 0, kLiterature, kMmaSimScales, kE8m0, 32, 16},
    {"rtx-blackwell-nvfp4", kE2m1, 64, 35, -139, 0, kLiterature, kMmaSimScales, kE4m3fn, 16, 16},
}};

constexpr std::string_view kRefused = "b200-fp8";

/// In any letter case.
const Unit* FindUnit(std::string_view name) {
  const auto* const found = std::ranges::find(kUnits, Lower(name), &Unit::name);
  return found == kUnits.end() ? nullptr : found;
}

const Unit& UnitNamed(std::string_view name) {
  if (const Unit* unit = FindUnit(name)) return *unit;
  if (Lower(name) == kRefused) {
    throw Error(
        "no preset b200-fp8: no known rule reproduces the published results of B200's FP8 unit");
  }
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
  if (unit.operand == kE4m3fn && !unit.scale) {
    throw Error("preset " + name +
                ": output must be fp32, got fp16: no known rule reproduces the published fp16 "
                "results of FP8 units");
  }
  if (unit.operand != kFp16) {
    throw Error("preset " + name + ": output must be fp32, got fp16, which is for fp16 operands");
  }
}

}  // namespace

bool NamesPreset(std::string_view word) {
  if (FindUnit(word) != nullptr || Lower(word) == kRefused) return true;
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
  rule.sum = unit.operand == kE4m3fn && !unit.scale ? kE8m13 : output;
  rule.scale = unit.scale;
  rule.scale_block = unit.scale_block;
  rule.dot = unit.dot;
  if (output == kFp16) rule.rounding = Rounding::nearest_even;
  Accumulator accumulator;
  accumulator.format = output;
  accumulator.scheme = Scheme::block_fma;
  accumulator.unit = rule;
  return accumulator;
}

std::vector<PresetInfo> Presets() {
  std::vector<PresetInfo> all;
  all.reserve(kUnits.size());
  for (const Unit& unit : kUnits) {
    all.push_back({std::string(unit.name), std::string(unit.evidence), std::string(unit.source)});
  }
  return all;
}

}  // namespace cpd
