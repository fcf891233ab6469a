// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/names.h"

namespace cpd {
namespace {

constexpr std::array<std::string_view, 3> kOrders{"sequential", "ring", "tree"};
constexpr std::array<std::string_view, 4> kExchanges{"owner", "gather", "ring", "hierarchical"};
constexpr std::array<std::string_view, 2> kDivides{"after", "before"};

void CheckLossScale(const Reduce& spec) {
  if (!IsLossScale(spec.loss_scale)) {
    std::ostringstream given;
    given << spec.loss_scale;
    throw Error("loss_scale must be a power of two from 2^-126 to 2^126, got " + given.str());
  }
  if (spec.aps != Aps::off && spec.loss_scale != 1) {
    throw Error("aps and loss_scale exclude each other: APS chooses the scale of each layer");
  }
}

void CheckOrder(const Reduce& spec) {
  const bool grouped = spec.group_size > 0;
  if (spec.order == Order::tree && spec.accumulator.scheme != Scheme::sequential) {
    throw Error("order tree merges sums two by two: its accumulator must be sequential, got " +
                ToString(spec.accumulator.scheme));
  }
  if (spec.exchange == Exchange::ring && (spec.order != Order::ring || grouped)) {
    throw Error("exchange ring needs order ring and no groups, got order " + ToString(spec.order) +
                (grouped ? " with groups" : ""));
  }
  if (spec.exchange == Exchange::hierarchical && (spec.order != Order::ring || !grouped)) {
    throw Error("exchange hierarchical needs a group_size and order ring, got order " +
                ToString(spec.order) + (grouped ? "" : " without groups"));
  }
  if (spec.exchange != Exchange::owner && spec.exchange != Exchange::gather &&
      spec.accumulator.scheme == Scheme::pairwise) {
    throw Error("exchange " + ToString(spec.exchange) +
                " hands partial sums on: its accumulator must not be pairwise");
  }
}

}  // namespace

Order ParseOrder(std::string_view name) { return ParseName<Order>("order", kOrders, name); }
std::string ToString(Order order) {
  return std::string(kOrders.at(static_cast<std::size_t>(order)));
}
Exchange ParseExchange(std::string_view name) {
  return ParseName<Exchange>("exchange", kExchanges, name);
}
std::string ToString(Exchange exchange) {
  return std::string(kExchanges.at(static_cast<std::size_t>(exchange)));
}
Divide ParseDivide(std::string_view name) { return ParseName<Divide>("divide", kDivides, name); }
std::string ToString(Divide divide) {
  return std::string(kDivides.at(static_cast<std::size_t>(divide)));
}

std::span<const std::string_view> OrderNames() { return kOrders; }
std::span<const std::string_view> ExchangeNames() { return kExchanges; }
std::span<const std::string_view> DivideNames() { return kDivides; }

bool IsLossScale(double scale) {
  int exponent = 0;
  return scale > 0 && std::frexp(scale, &exponent) == 0.5 && std::abs(exponent - 1) <= 126;
}

void Check(const Reduce& spec) {
  Check(spec.format);
  Check(spec.rounding);
  Check(spec.accumulator);
  if (spec.accumulator.scheme == Scheme::fixed) {
    throw Error("a reduction hands floating-point sums on: its accumulator must not be fixed");
  }
  Check(spec.result);
  if (spec.wire != nullptr && spec.wire->format() != spec.format) {
    throw Error("format must be that of the values of codec '" + spec.wire->text() + "', " +
                ToString(spec.wire->format()) + ", got " + ToString(spec.format));
  }
  if (spec.wire != nullptr && spec.wire->has_scales() && spec.aps != Aps::off) {
    throw Error("aps chooses a scale of each layer; codec '" + spec.wire->text() +
                "' has scales of its own");
  }
  const bool hops = spec.exchange == Exchange::ring || spec.exchange == Exchange::hierarchical;
  if (spec.wire != nullptr && !spec.wire->may_hop() && hops) {
    throw Error("exchange " + ToString(spec.exchange) +
                " hands partial sums on, for which codec '" + spec.wire->name() +
                "' has no bytes: take exchange owner or gather");
  }
  CheckName("order", kOrders, spec.order);
  CheckName("exchange", kExchanges, spec.exchange);
  CheckName("divide", kDivides, spec.divide);
  Check(spec.aps);
  if (spec.group_size < 0) {
    throw Error("group_size must be at least 1 (0: no groups), got " +
                std::to_string(spec.group_size));
  }
  CheckLossScale(spec);
  CheckOrder(spec);
}

void Check(const Reduce& spec, int world) {
  Check(spec);
  if (world < 1) throw Error("world must be at least 1, got " + std::to_string(world));
  if (spec.group_size > world) {
    throw Error("group_size must be 1…" + std::to_string(world) + " (the ranks), got " +
                std::to_string(spec.group_size));
  }
}

bool MayStall(const Reduce& spec, int world) {
  Check(spec);
  if (spec.accumulator.scheme != Scheme::sequential || spec.order == Order::tree ||
      !is_nearest(spec.accumulator.rounding.mode)) {
    return false;
  }
  const int groups = spec.group_size == 0 ? world : (world - 1) / spec.group_size + 1;
  const int terms = std::max(groups, std::min(world, spec.group_size));
  return terms > std::ldexp(1.0, spec.accumulator.format.precision());
}

}  // namespace cpd
