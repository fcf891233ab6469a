// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/operation.h"

#include <array>

#include "cpd/spec/names.h"

namespace cpd::soft {
namespace {

constexpr std::array<std::string_view, 6> kOperations{"cast", "add", "mul", "fma", "div", "sqrt"};
constexpr std::array<std::string_view, 2> kTininess{"after", "before"};

}  // namespace

Operation ParseOperation(std::string_view name) {
  return ParseName<Operation>("operation", kOperations, name);
}
Tininess ParseTininess(std::string_view name) {
  return ParseName<Tininess>("tininess", kTininess, name);
}
std::string ToString(Operation operation) {
  return std::string(kOperations.at(static_cast<std::size_t>(operation)));
}

}  // namespace cpd::soft
