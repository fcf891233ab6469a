// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/rounding.h"

#include <array>

#include "cpd/spec/names.h"

namespace cpd {
namespace {

constexpr std::array<std::string_view, 7> kModes{
    "nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd", "stochastic"};
constexpr std::array<std::string_view, 2> kPolicies{"ieee", "saturate"};
constexpr std::array<std::string_view, 3> kVariants{"A", "B", "C"};

}  // namespace

void Check(const RoundingOptions& options) {
  CheckName("rounding", options.mode);
  CheckName("overflow", options.overflow);
  CheckName("variant", options.variant);
  if (options.random_bits < 1 || options.random_bits > kMaxRandomBits) {
    throw Error("random_bits must be 1…" + std::to_string(kMaxRandomBits) + ", got " +
                std::to_string(options.random_bits));
  }
}

Rounding ParseRounding(std::string_view name) { return ParseName<Rounding>("rounding", name); }
Overflow ParseOverflow(std::string_view name) { return ParseName<Overflow>("overflow", name); }
Variant ParseVariant(std::string_view name) { return ParseName<Variant>("variant", name); }

std::span<const std::string_view> NamesOf(Rounding /*mode*/) { return kModes; }
std::span<const std::string_view> NamesOf(Overflow /*overflow*/) { return kPolicies; }
std::span<const std::string_view> NamesOf(Variant /*variant*/) { return kVariants; }

}  // namespace cpd
