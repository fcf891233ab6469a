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
  CheckName("rounding", kModes, options.mode);
  CheckName("overflow", kPolicies, options.overflow);
  CheckName("variant", kVariants, options.variant);
  if (options.random_bits < 1 || options.random_bits > kMaxRandomBits) {
    throw Error("random_bits must be 1…" + std::to_string(kMaxRandomBits) + ", got " +
                std::to_string(options.random_bits));
  }
}

Rounding ParseRounding(std::string_view name) {
  return ParseName<Rounding>("rounding", kModes, name);
}
Overflow ParseOverflow(std::string_view name) {
  return ParseName<Overflow>("overflow", kPolicies, name);
}
Variant ParseVariant(std::string_view name) {
  return ParseName<Variant>("variant", kVariants, name);
}

std::string ToString(Rounding mode) {
  return std::string(kModes.at(static_cast<std::size_t>(mode)));
}
std::string ToString(Overflow overflow) {
  return std::string(kPolicies.at(static_cast<std::size_t>(overflow)));
}
std::string ToString(Variant variant) {
  return std::string(kVariants.at(static_cast<std::size_t>(variant)));
}

std::span<const std::string_view> RoundingNames() { return kModes; }
std::span<const std::string_view> OverflowNames() { return kPolicies; }
std::span<const std::string_view> VariantNames() { return kVariants; }

}  // namespace cpd
