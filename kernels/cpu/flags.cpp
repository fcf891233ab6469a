// SPDX-License-Identifier: Apache-2.0
//
// Finds the exceptions of roundings by comparisons. The loops are plain, so that compilers
// vectorize them.
#include "cpd/numeric/round/flag_limits.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint64_t;
using std::uint8_t;

template <class T>
CPD_FN bool compare(const FlagsCall& call) {
  const FlagLimits<T> limits = *static_cast<const FlagLimits<T>*>(call.limits);
  const auto* const x = static_cast<const T*>(call.x);
  const auto* const y = static_cast<const T*>(call.y);
  uint8_t* const raised = call.raised;
  const int64_t n = call.n;
  for (int64_t i = 0; i < n; ++i) raised[i] = static_cast<uint8_t>(flags_of(limits, x[i], y[i]));
  constexpr uint64_t kEach = ~uint64_t{0} / 255;  // 1 in each byte
  uint64_t all = 0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) all |= load<uint64_t>(raised + i);
  for (; i < n; ++i) all |= raised[i];
  return (all & kOpen * kEach) != 0;
}

}  // namespace

bool flags(const FlagsCall& call) {
  return call.dtype == DType::f64 ? compare<double>(call) : compare<float>(call);
}

}  // namespace CPD_ISA
}  // namespace cpd
