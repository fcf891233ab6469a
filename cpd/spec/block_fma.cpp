// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/block_fma.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "cpd/spec/names.h"

namespace cpd {
namespace {

constexpr std::array<std::string_view, 5> kAdders{"aligned", "exact", "flushed_pairs", "two_steps",
                                                  "two_steps_even"};

constexpr int kMostBlock = 64;
constexpr int kMostFractionBits = 30;
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

/// Returns the number of binary digits from a format's largest value to its least spacing.
int WidthOf(const Format& format) { return format.emax() - format.min_quantum_exponent() + 1; }

int BitsOf(int n) { return std::bit_width(static_cast<unsigned>(n)); }

constexpr int kBinary64 = 53;

/// Returns the largest F (fraction_bits) of a matrix unit with scales for which the sum of a block,
/// in units, is exact in binary64. Throws Error unless each term is exact in binary64.
int MostFractionWithScales(const BlockFma& unit) {
  Check(*unit.scale);
  CheckBetween("block_fma: scale_block", 1, unit.block, unit.scale_block);
  CheckBetween("block_fma: dot", 1, unit.scale_block, unit.dot);
  if (unit.block % unit.scale_block != 0 || unit.scale_block % unit.dot != 0) {
    throw Error("block_fma: block must be a multiple of scale_block, and that of dot, got " +
                std::to_string(unit.block) + ", " + std::to_string(unit.scale_block) + " and " +
                std::to_string(unit.dot));
  }
  const bool sums = unit.dot > 1;
  const int products = sums ? WidthOf(unit.a) + WidthOf(unit.b) + BitsOf(unit.dot - 1)
                            : unit.a.precision() + unit.b.precision();
  if (products + 2 * unit.scale->precision() > kBinary64) {
    throw Error("block_fma: a term must have at most 53 bits, got a=" + ToString(unit.a) +
                ", b=" + ToString(unit.b) + ", scale=" + ToString(*unit.scale) +
                ", dot=" + std::to_string(unit.dot));
  }
  // With dot = 1, a term is below 2^(E + 4). With dot > 1, a term is below dot * 2^(emax of a + 1)
  // * 2^(emax of b + 1) * 2^(E + 2).
  const int growth = sums ? unit.a.emax() + unit.b.emax() + 2 + 2 : 4;
  return kBinary64 - 1 - std::max(growth, 1) - BitsOf(unit.block);
}

/// Checks the fields that define the order of k: `group` must be a multiple of `block` and of
/// `stride`, and `stride` a multiple of `take`. Throws Error otherwise. Also throws Error if
/// `promote` is not a multiple of `group`, if a unit with scales has a group, or if `group` has no
/// effect with the adder.
void CheckOrder(const BlockFma& unit) {
  constexpr BlockFma kUsual;
  if (unit.group == 0) {
    if (unit.stride == kUsual.stride && unit.take == kUsual.take) return;
    throw Error("block_fma: stride and take are for units with a group, got " +
                std::to_string(unit.stride) + " and " + std::to_string(unit.take));
  }
  CheckBetween("block_fma: group", 0, kMostBlock, unit.group);
  CheckBetween("block_fma: stride", 1, unit.group, unit.stride);
  CheckBetween("block_fma: take", 1, unit.stride, unit.take);
  if (unit.group % unit.block != 0 || unit.group % unit.stride != 0 ||
      unit.stride % unit.take != 0) {
    throw Error(
        "block_fma: group must be a multiple of block and of stride, and that of take, got " +
        std::to_string(unit.group) + ", " + std::to_string(unit.block) + ", " +
        std::to_string(unit.stride) + " and " + std::to_string(unit.take));
  }
  if (unit.promote % unit.group != 0) {
    throw Error("block_fma: promote must be 0 or a multiple of group = " +
                std::to_string(unit.group) + ", got " + std::to_string(unit.promote));
  }
  if (unit.scale) {
    throw Error("block_fma: a unit with a scale takes k in ascending order: group must be 0, got " +
                std::to_string(unit.group));
  }
  const bool has_pairs = unit.adder == Adder::flushed_pairs || unit.adder == Adder::two_steps_even;
  if (unit.group == unit.block && !has_pairs) {
    throw Error("block_fma: group=" + std::to_string(unit.group) +
                " has no effect, as a block's products are summed at once: give a multiple of the "
                "block, such as " +
                std::to_string(2 * unit.block));
  }
}

/// Throws Error if fraction_bits or min_exponent is set for an adder that does not cut terms.
void CheckCuts(const BlockFma& unit) {
  constexpr BlockFma kUsual;
  if (CutsTerms(unit.adder)) return;
  std::string given;
  const auto add = [&](const char* name, int value, int usual) {
    if (value != usual) given += std::string(" ") + name + "=" + std::to_string(value);
  };
  add("min_exponent", unit.min_exponent, kUsual.min_exponent);
  add("fraction_bits", unit.fraction_bits, kUsual.fraction_bits);
  if (given.empty()) return;
  throw Error("block_fma:" + given + " has no effect, as adder " + ToString(unit.adder) +
              " cuts no term: sum= and sum_rounding= round its sums; adders aligned, two_steps and "
              "two_steps_even cut");
}

/// Throws Error unless the matrix unit meets the assumptions of its adder. Adder `aligned` makes no
/// assumptions.
void CheckAdder(const BlockFma& unit) {
  CheckName("adder", unit.adder);
  if (unit.adder == Adder::aligned) return;
  CheckCuts(unit);
  const std::string adder = "block_fma: adder " + ToString(unit.adder);
  if (unit.scale) throw Error(adder + " is for units without a scale");
  if (!unit.aligns_addend) throw Error(adder + " needs addend=aligned, got separate");
  if (unit.adder == Adder::exact) return;
  const Format fp32;
  if (unit.sum != fp32 || unit.rounding != Rounding::nearest_even) {
    throw Error(adder + " sums in fp32 and rounds to nearest_even, got " + ToString(unit.sum) +
                " and " + ToString(unit.rounding));
  }
  if (unit.adder != Adder::flushed_pairs) return;
  if (unit.block != 2 && unit.block != 4) {
    throw Error(adder + " takes blocks of 2 or 4, got " + std::to_string(unit.block));
  }
  if (unit.a.precision() + unit.b.precision() > fp32.precision()) {
    throw Error(adder + " needs products of at most 24 bits, got a=" + ToString(unit.a) +
                ", b=" + ToString(unit.b));
  }
}

}  // namespace

std::span<const std::string_view> NamesOf(Adder /*adder*/) { return kAdders; }

void Check(const BlockFma& unit) {
  Check(unit.a);
  Check(unit.b);
  Check(unit.sum);
  Check(RoundingOptions{.mode = unit.rounding});
  CheckOperand("a", unit.a);
  CheckOperand("b", unit.b);
  CheckBetween("block_fma: block", 1, kMostBlock, unit.block);
  CheckBetween("block_fma: fraction_bits", 1,
               unit.scale ? MostFractionWithScales(unit) : kMostFractionBits, unit.fraction_bits);
  CheckBetween("block_fma: min_exponent", kLeastExponent, kMostExponent, unit.min_exponent);
  if (!unit.sum.has_zero() || !unit.sum.is_signed) {
    throw Error("block_fma: sum must be a signed format with a zero, got " + ToString(unit.sum));
  }
  if (unit.rounding != Rounding::toward_zero && unit.rounding != Rounding::nearest_even) {
    throw Error("block_fma: the unit rounds toward_zero or nearest_even, got " +
                ToString(unit.rounding));
  }
  if (!unit.scale && (unit.scale_block != BlockFma{}.scale_block || unit.dot != 1)) {
    throw Error("block_fma: scale_block and dot are for units with a scale, got " +
                std::to_string(unit.scale_block) + " and " + std::to_string(unit.dot));
  }
  if (unit.promote < 0 || unit.promote % unit.block != 0) {
    throw Error("block_fma: promote must be 0 or a multiple of block = " +
                std::to_string(unit.block) + ", got " + std::to_string(unit.promote));
  }
  if (!unit.aligns_addend && unit.promote == unit.block) {
    throw Error(
        "block_fma: addend=separate has no effect, as promote=" + std::to_string(unit.promote) +
        " starts every block of the unit from +0: give a multiple of the block");
  }
  CheckOrder(unit);
  CheckAdder(unit);
}

}  // namespace cpd
