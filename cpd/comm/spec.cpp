// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/spec.h"

#include <array>
#include <cmath>
#include <sstream>

#include "cpd/base/names.h"

namespace cpd {
namespace {
constexpr std::array<std::string_view, 2> kOrders{"sequential", "ring"};
}

Order ParseOrder(std::string_view name) { return ParseName<Order>("order", kOrders, name); }
std::string ToString(Order order) {
  return std::string(kOrders.at(static_cast<std::size_t>(order)));
}

void Check(const ReduceSpec& spec) {
  Check(spec.rounding);
  Check(spec.accumulator.rounding);
  if (spec.group_size < 0) {
    throw Error("group_size must be at least 1 (0: no groups), got " +
                std::to_string(spec.group_size));
  }
  int exponent = 0;
  if (!(spec.loss_scale > 0) || std::frexp(spec.loss_scale, &exponent) != 0.5 ||
      std::abs(exponent - 1) > 126) {
    std::ostringstream given;
    given << spec.loss_scale;
    throw Error("loss_scale must be a power of two from 2^-126 to 2^126, got " + given.str());
  }
  if (spec.aps != Aps::off && spec.loss_scale != 1) {
    throw Error("aps and loss_scale exclude each other: APS chooses the scale of each layer");
  }
}

}  // namespace cpd
