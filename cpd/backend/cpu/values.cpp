// SPDX-License-Identifier: Apache-2.0
//
// Checks of the values of tensors.
#include <algorithm>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/roster.h"

namespace cpd::cpu {
namespace {

constexpr std::int64_t kRun = 4 * kBlock;  ///< values checked at once, which stay in L1

/// Lowers *first to the lowest index of an invalid element of x, which has n elements. `find`
/// decides what is invalid: find(values, count) must return the index of the first invalid one of
/// `count` values, or `count` if there is none.
template <class T, class Find>
void FirstOf(const Strided& x, std::int64_t n, unsigned long long* first, Find find) {
  parallel_for(n, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<T> reader(x);
    bool found = false;
    ForRanges(begin, end, kRun, [&](std::int64_t i, std::int64_t count) {
      if (found) return;
      const std::int64_t wrong = find(reader.Read(i, count), count);
      found = wrong < count;
      if (found) Lower(first, static_cast<unsigned long long>(i + wrong));
    });
  });
}

}  // namespace

int first_above(const Launch& /*launch*/, const FirstAboveCall& call) {
  const auto above = [&](const std::uint32_t* values, std::int64_t n) {
    const auto is_above = [&](std::uint32_t v) { return v >= call.limit; };
    if (!is_above(*std::max_element(values, values + n))) return n;
    return static_cast<std::int64_t>(std::find_if(values, values + n, is_above) - values);
  };
  FirstOf<std::uint32_t>(call.integers, call.n, call.first, above);
  return 0;
}

int first_outside(const Launch& /*launch*/, const FirstOutsideCall& call) {
  const auto outside = [&](const float* values, std::int64_t n) {
    float rounded[kRun];
    Kernels().cast({.n = n,
                    .x = Contiguous(values),
                    .random = {},
                    .out = Contiguous(rounded),
                    .plan = &call.plan});
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = values[i];
      if (value != value ? !call.plan.has_nan : rounded[i] != value) return i;
      if (value < 0 && !call.negative) return i;
    }
    return n;
  };
  FirstOf<float>(call.x, call.n, call.first, outside);
  return 0;
}

}  // namespace cpd::cpu
