// SPDX-License-Identifier: Apache-2.0
#include "cpd/text/block_fma.h"

#include <array>

#include "cpd/numeric/accumulator.h"
#include "cpd/text/options.h"

namespace cpd {
namespace {

constexpr int kMostBlock = 64;
constexpr int kMostFraction = 30;
constexpr int kLeastExponent = -400;  // below every product of binary32 values
constexpr int kMostExponent = 127;

void CheckBetween(const std::string& what, std::int64_t low, std::int64_t high,
                  std::int64_t given) {
  if (given >= low && given <= high) return;
  throw Error(what + " must be " + std::to_string(low) + "…" + std::to_string(high) + ", got " +
              std::to_string(given));
}

void CheckOperand(const char* name, const Format& format) {
  if (format.has_zero()) return;
  throw Error("block_fma: " + std::string(name) + " must be a format with a zero, got " +
              ToString(format));
}

}  // namespace

void Check(const BlockFma& unit) {
  Check(unit.a);
  Check(unit.b);
  Check(unit.sum);
  Check(RoundingOptions{.mode = unit.rounding});
  CheckOperand("a", unit.a);
  CheckOperand("b", unit.b);
  CheckBetween("block_fma: block", 1, kMostBlock, unit.block);
  CheckBetween("block_fma: fraction_bits", 1, kMostFraction, unit.fraction_bits);
  CheckBetween("block_fma: min_exponent", kLeastExponent, kMostExponent, unit.min_exponent);
  if (!unit.sum.has_zero() || !unit.sum.is_signed) {
    throw Error("block_fma: sum must be a signed format with a zero, got " + ToString(unit.sum));
  }
  if (unit.rounding != Rounding::toward_zero && unit.rounding != Rounding::nearest_even) {
    throw Error("block_fma: the unit rounds toward_zero or nearest_even, got " +
                ToString(unit.rounding));
  }
  if (unit.promote < 0 || unit.promote % unit.block != 0) {
    throw Error("block_fma: promote must be 0 or a multiple of block = " +
                std::to_string(unit.block) + ", got " + std::to_string(unit.promote));
  }
}

std::string ToString(const BlockFma& unit) {
  std::string text;
  Put(text, "a", unit.a);
  Put(text, "b", unit.b);
  Put(text, "block", unit.block);
  Put(text, "fraction_bits", unit.fraction_bits);
  Put(text, "min_exponent", unit.min_exponent);
  Put(text, "sum", unit.sum);
  if (unit.rounding != BlockFma{}.rounding) Put(text, "sum_rounding", unit.rounding);
  if (!unit.aligns_addend) Put(text, "addend", "separate");
  if (unit.promote != 0) Put(text, "promote", unit.promote);
  return text.substr(1);
}

bool ParseUnitOption(BlockFma& unit, std::string_view name, std::string_view text) {
  constexpr std::array<std::string_view, 2> kAddends{"separate", "aligned"};
  if (name == "a") {
    unit.a = ParseFormat(text);
  } else if (name == "b") {
    unit.b = ParseFormat(text);
  } else if (name == "block") {
    unit.block = ParseInteger<int>(name, text);
  } else if (name == "fraction_bits") {
    unit.fraction_bits = ParseInteger<int>(name, text);
  } else if (name == "min_exponent") {
    unit.min_exponent = ParseInteger<int>(name, text);
  } else if (name == "sum") {
    unit.sum = ParseFormat(text);
  } else if (name == "sum_rounding") {
    unit.rounding = ParseRounding(text);
  } else if (name == "addend") {
    unit.aligns_addend = ParseName<int>("addend", kAddends, text) == 1;
  } else if (name == "promote") {
    unit.promote = ParseInteger<std::int64_t>(name, text);
  } else {
    return false;
  }
  return true;
}

BlockFma ParseBlockFma(std::string_view text) {
  BlockFma unit;
  ParseOptions(Words(text), "a unit", [&](std::string_view name, std::string_view value) {
    if (!ParseUnitOption(unit, name, value))
      throw Error("unknown option " + Quoted(name) + " of a unit");
  });
  Check(unit);
  return unit;
}

}  // namespace cpd
