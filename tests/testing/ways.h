// SPDX-License-Identifier: Apache-2.0
//
// Makes many specs of a reduction. Each combination of order, exchange and group size has several
// formats, accumulators, roundings and scales.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cpd/comm/spec.h"

namespace cpd::testing {

inline std::string describe(const Reduce& spec, std::size_t world) {
  return ToString(spec.exchange) + ", order " + ToString(spec.order) +
         ", W = " + std::to_string(world) + ", groups of " + std::to_string(spec.group_size) +
         ", " + ToString(spec.format) + " -> " + ToString(spec.accumulator) + " -> " +
         ToString(spec.result) + ", " + ToString(spec.rounding.mode);
}

/// A combination of order of summation, exchange and group size in which a reduction is tested.
struct Way {
  Order order;
  Exchange exchange;
  int group;
};

inline std::vector<Way> ways(int world) {
  std::vector<Way> all;
  std::vector<int> groups = {0, 1, world};
  for (const int group : {3, 4}) {
    if (world > group) groups.push_back(group);
  }
  for (const int group : groups) {
    for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
      all.push_back({order, Exchange::owner, group});
      all.push_back({order, Exchange::gather, group});
    }
    all.push_back({Order::ring, group == 0 ? Exchange::ring : Exchange::hierarchical, group});
  }
  return all;
}

inline const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      MakeFormat(4, 3),      MakeFormat(5, 2),    MakeFormat(3, 0),        MakeFormat(2, 1),
      MakeFormat(8, 7),      MakeFormat(1, 2),    ParseFormat("fp16"),     ParseFormat("bf16"),
      ParseFormat("e4m3fn"), ParseFormat("e2m1"), ParseFormat("e5m2fnuz"), kFp32};
  return all;
}

/// Returns accumulators in this format, with each scheme that the order and the exchange permit.
inline std::vector<Accumulator> accumulators(const Way& way, const Format& format) {
  std::vector<Accumulator> all(1);
  if (way.order != Order::tree) {
    all.resize(4);
    all[1].scheme = Scheme::kahan;
    all[2].scheme = all[3].scheme = Scheme::chunked;
    all[2].chunk = 2;
    all[2].inner = ParseFormat("e6m9");
    all[3].chunk = 3;
    all[3].inner = ParseFormat("e4m2");
    if (way.exchange == Exchange::owner || way.exchange == Exchange::gather) {
      all.emplace_back().scheme = Scheme::pairwise;
    }
  }
  for (Accumulator& a : all) a.format = format;
  return all;
}

/// Returns one of many specs with this order, exchange and group size. `pick` selects formats,
/// sums, roundings and scales.
inline Reduce spec_of(const Way& way, std::size_t pick) {
  Reduce spec;
  spec.order = way.order;
  spec.exchange = way.exchange;
  spec.group_size = way.group;
  spec.format = formats()[pick % formats().size()];
  const Format& sum = pick % 3 == 0 ? formats()[(pick / 3) % formats().size()] : spec.format;
  const auto sums = accumulators(way, sum);
  spec.accumulator = sums[(pick / 2) % sums.size()];
  spec.result = pick % 4 == 1 ? formats()[(pick / 4) % formats().size()] : sum;
  if (pick % 5 == 2) spec.rounding.mode = Rounding::stochastic;
  if (pick % 5 >= 2) spec.accumulator.rounding.mode = Rounding::stochastic;
  if (pick % 7 == 6) spec.accumulator.rounding.mode = Rounding::toward_zero;
  spec.rounding.random_bits = pick % 2 == 0 ? 8 : 24;
  if (pick % 3 == 1) spec.aps = pick % 2 == 0 ? Aps::on : Aps::paper;
  if (spec.aps == Aps::off && pick % 4 == 3) spec.loss_scale = 0x1p-3;
  spec.average = pick % 6 == 5;
  return spec;
}

}  // namespace cpd::testing
