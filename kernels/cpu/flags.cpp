// SPDX-License-Identifier: Apache-2.0
//
// Exceptions of roundings by comparisons. The loops are plain: compilers make vectors of them.
#include "cpd/numeric/round/flag_limits.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint64_t;
using std::uint8_t;

template <class T>
CPD_FN bool compare(const FlagLimits<T>& shared, int64_t n, const T* x, const T* y,
                    uint8_t* raised) {
  const FlagLimits<T> limits = shared;
  for (int64_t i = 0; i < n; ++i) raised[i] = static_cast<uint8_t>(flags_of(limits, x[i], y[i]));
  constexpr uint64_t kEach = ~uint64_t{0} / 255;  // 1 in each byte
  uint64_t all = 0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) all |= load<uint64_t>(raised + i);
  for (; i < n; ++i) all |= raised[i];
  return (all & kOpen * kEach) != 0;
}

}  // namespace

bool flags_f32(const FlagLimits<float>& limits, int64_t n, const float* x, const float* y,
               uint8_t* raised) {
  return compare(limits, n, x, y, raised);
}

bool flags_f64(const FlagLimits<double>& limits, int64_t n, const double* x, const double* y,
               uint8_t* raised) {
  return compare(limits, n, x, y, raised);
}

}  // namespace CPD_ISA
}  // namespace cpd
