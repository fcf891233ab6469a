// SPDX-License-Identifier: Apache-2.0
//
// The oracle of ordered sums: every scheme as a loop over reference.h's operations.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "cpd/oracle/reference.h"

namespace cpd::reference {

// Gives the random integer of each rounding, in program order.
using RandomSource = std::function<std::uint32_t()>;

// The options of the next rounding of a sum.
inline Options next(Options o, const RandomSource& random) {
  if (random) o.random = random();
  return o;
}

// ((x0 + x1) + x2) + ..., each rounded into the accumulator; starts from x0 rounded; empty: +0.
inline float sum_sequential(const Spec& spec, std::span<const float> terms, const Options& o = {},
                            const RandomSource& random = {}) {
  if (terms.empty()) return 0.0f;
  float s = cast(spec, terms[0], next(o, random));
  for (const float x : terms.subspan(1)) s = add(spec, s, x, next(o, random));
  return s;
}

// Kahan's sum: y = x - c; t = s + y; c = (t - s) - y; s = t, each operation rounded into the
// accumulator. From an infinite or NaN s on, c is +0.
inline float sum_kahan(const Spec& spec, std::span<const float> terms, const Options& o = {},
                       const RandomSource& random = {}) {
  if (terms.empty()) return 0.0f;
  float s = cast(spec, terms[0], next(o, random));
  float c = 0.0f;
  for (const float x : terms.subspan(1)) {
    const float y = subtract(spec, x, c, next(o, random));
    const float t = add(spec, s, y, next(o, random));
    const float grown = subtract(spec, t, s, next(o, random));
    c = subtract(spec, grown, y, next(o, random));
    if (exact(t).kind != Exact::Kind::finite) c = 0.0f;
    s = t;
  }
  return s;
}

// Sums of `chunk` terms each, in order, into `inner`; the sum of those, in order, into `outer`.
inline float sum_chunked(const Spec& outer, const Spec& inner, std::size_t chunk,
                         std::span<const float> terms, const Options& o = {},
                         const RandomSource& random = {}) {
  float s = 0.0f;
  for (std::size_t begin = 0; begin < terms.size(); begin += chunk) {
    const auto part = terms.subspan(begin, std::min(chunk, terms.size() - begin));
    const float t = sum_sequential(inner, part, o, random);
    s = begin == 0 ? cast(outer, t, next(o, random)) : add(outer, s, t, next(o, random));
  }
  return s;
}

// A tree over the terms as they are: its left part has the largest power of two below their number.
inline float sum_pairwise(const Spec& spec, std::span<const float> terms, const Options& o = {},
                          const RandomSource& random = {}) {
  const auto tree = [&](const auto& self, std::span<const float> part) -> float {
    if (part.size() == 1) return part[0];
    const std::size_t left = std::bit_floor(part.size() - 1);
    const float a = self(self, part.first(left));
    const float b = self(self, part.subspan(left));
    return add(spec, a, b, next(o, random));
  };
  if (terms.empty()) return 0.0f;
  return terms.size() == 1 ? cast(spec, terms[0], next(o, random)) : tree(tree, terms);
}

}  // namespace cpd::reference
