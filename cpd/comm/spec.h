// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cpd/numeric/accumulator.h"
#include "cpd/scale/aps.h"

namespace cpd {

/// Order of summation across ranks (or, with groups, across the groups' masters).
enum class Order : std::uint8_t {
  sequential,  ///< rank ascending from rank 0
  ring,  ///< a layer is cut into W slices, the first n mod W one longer; slice s from rank s + 1
};

/// An all-reduce: what each contribution is cast to, how the sum is formed, what comes back.
struct ReduceSpec {
  Format format = kFp32;       ///< on the wire
  RoundingOptions rounding{};  ///< of the cast to the wire
  Accumulator accumulator{};   ///< of the sum
  Format result = kFp32;       ///< a wider accumulator is rounded once more to it, each level
  Order order = Order::sequential;
  int group_size = 0;  ///< 0: no groups; else each group in rank order to its first rank
  Aps aps = Aps::off;
  double loss_scale = 1;   ///< constant power of two for all layers, undone at the end; APS's rival
  bool average = false;    ///< divide once, in binary32, at the end
  std::uint64_t step = 0;  ///< enters the random streams
};

/// Throws Error where an option is out of range or two exclude each other.
CPD_API void Check(const ReduceSpec& spec);

CPD_API Order ParseOrder(std::string_view name);
CPD_API std::string ToString(Order order);

}  // namespace cpd
