// SPDX-License-Identifier: Apache-2.0
//
// Finds the indices of values whose magnitude is large enough. Such values are few. A group of
// lanes that contains no such value costs a single comparison.
#include "kernels/cpu/pages.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;

/// Stores in `places` the index of each of `lanes` values v for which (bit pattern & mask) >=
/// least. The first value has index i. Returns the end of the stored indices.
CPD_FN uint32_t* put_places(uint32_t mask, uint32_t least, int64_t i, int64_t lanes, const float* v,
                            uint32_t* places) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    *places = static_cast<uint32_t>(i + lane);
    places += (bits_as<uint32_t>(v[lane]) & mask) >= least ? 1 : 0;
  }
  return places;
}

template <bool kAdds>
CPD_FN int64_t find_large_of(uint32_t mask, uint32_t least, int64_t n, const float* x,
                             const float* r, float* y, uint32_t* places) {
  using U = Unsigned<F>;
  constexpr int64_t kLanes = Lanes<F>::count;
  const uint32_t* const begin = places;
  const auto value = [&](int64_t i) {
    if constexpr (kAdds) return load<F>(x + i) + load<F>(r + i);
    return load<F>(x + i);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F v = value(i);
    if constexpr (kAdds) store(y + i, v);
    if (!any((bits_as<U>(v) & splat<U>(mask)) >= splat<U>(least))) continue;
    float lanes[kLanes];
    store(lanes, v);
    uint32_t found[kLanes];
    const uint32_t* const end = put_places(mask, least, i, kLanes, lanes, found);
    copy(places, found, end - found);
    places += end - found;
  }
  for (; i < n; ++i) {
    const float v = kAdds ? x[i] + r[i] : x[i];
    if constexpr (kAdds) y[i] = v;
    if ((bits_as<uint32_t>(v) & mask) >= least) *places++ = static_cast<uint32_t>(i);
  }
  return places - begin;
}

}  // namespace

int64_t find_large(uint32_t mask, uint32_t least, int64_t n, const float* x, const float* r,
                   float* y, uint32_t* places) {
  if (y == nullptr) return find_large_of<false>(mask, least, n, x, r, y, places);
  return find_large_of<true>(mask, least, n, x, r, y, places);
}

}  // namespace CPD_ISA
}  // namespace cpd
