// SPDX-License-Identifier: Apache-2.0
//
// Scaled formats: computes the scales of blocks from the blocks' largest magnitudes, and rounds,
// encodes or decodes the elements divided by their scales.
#include "cpd/numeric/round/codec.h"
#include "cpd/numeric/scaled/scaled_elements.h"
#include "kernels/cpu/pages.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint8_t;

// --- scales --------------------------------------------------------------------------------------

/// Processes several binary32 arrays of n values together, as many values at a time as V has lanes:
/// calls one(at) for each such group. at[k] points to the group's values in array k, or to a buffer
/// for the incomplete last group. `one` reads the first kIn arrays and writes the others.
template <class V, int kIn, int kAll, class One>
CPD_FN void for_groups(int64_t n, float* const (&arrays)[kAll], One one) {
  constexpr int kLanes = Lanes<V>::count;
  for (int64_t i = 0; i < n; i += kLanes) {
    float* at[kAll];
    if (i + kLanes <= n) {
      for (int k = 0; k < kAll; ++k) at[k] = arrays[k] + i;
      one(at);
      continue;
    }
    float buffer[kAll][kLanes] = {};
    for (int k = 0; k < kAll; ++k) {
      at[k] = buffer[k];
      if (k < kIn) copy(buffer[k], arrays[k] + i, n - i);
    }
    one(at);
    for (int k = kIn; k < kAll; ++k) copy(arrays[k] + i, buffer[k], n - i);
  }
}

/// Stores three numbers of each block: the scale, the factor by which elements are multiplied, and
/// the scale by which codes are decoded. For a block of zeros, the last is 1, so that decoding
/// never multiplies by a subnormal scale. Returns whether a scale is outside the range that the
/// route (method of division) supports.
template <class V>
CPD_FN bool scales_of(ScaledPlan plan, ElementRoute route, double share, int64_t n,
                      float* const (&arrays)[6]) {
  V outside{};
  for_groups<V, 3>(n, arrays, [&](float* const(&at)[6]) {
    const OuterScale<V> outer_scale{load_f32<V>(at[1]), load_f32<V>(at[2])};
    const V a = load_f32<V>(at[0]);
    const BlockScale<V> block = block_scale(a, outer_scale, share, plan);
    const auto empty = (a == V{}) & (block.scale == block.scale);
    store_f32(at[3], block.scale);
    store_f32(at[4], element_by(route, block));
    store_f32(at[5], select(empty, splat<V>(1), block.scale));
    outside = select(is_outside(route, block.scale), splat<V>(1), outside);
  });
  return !all_at_most(outside, 0);
}

// --- elements ------------------------------------------------------------------------------------

/// Loads the scales of elements i, i + 1, … of a row, one element in each lane of V. Each element
/// must have its own scale (run.run, the number of elements that share a scale, is 1).
template <class V>
CPD_FN ElementScale<V> load_scale(const ScaledRun& run, int64_t i, bool inverts) {
  const ElementScale<V> at{load_f32<V>(run.factor + i), load_f32<V>(run.scale + i),
                           load_f32<V>(run.outer + i)};
  return inverts ? with_inverse(at) : at;
}
template <class V>
CPD_FN ElementScale<V> splat_scale(const ScaledRun& run, int64_t i, bool inverts = false) {
  const ElementScale<V> at{splat<V>(run.factor[i]), splat<V>(run.scale[i]), splat<V>(run.outer[i])};
  return inverts ? with_inverse(at) : at;
}

/// Processes the incomplete last group of a row: `rest` elements from element i on, fewer than V
/// has lanes. Copies them to a buffer, calls one(x, scales, random, to) for the buffer, and copies
/// the results to the row.
template <class R, class V, class T, class One>
CPD_FN void last_elements(const ScaledRun& run, int64_t i, int64_t rest, T* to, bool inverts,
                          One one) {
  constexpr int kLanes = Lanes<V>::count;
  float in[4][kLanes] = {};
  uint32_t r[kLanes] = {};
  alignas(64) T out[kLanes];
  copy(in[0], run.x + i, rest);
  for (int64_t k = 0; k < rest; ++k) {
    const int64_t at = run.run == 1 ? i + k : i / run.run;
    in[1][k] = run.factor[at];
    in[2][k] = run.scale[at];
    in[3][k] = run.outer[at];
  }
  if constexpr (R::mode == Rounding::stochastic) copy(r, run.random + i, rest);
  const ScaledRun lanes{.factor = in[1], .scale = in[2], .outer = in[3]};
  const ElementScale<V> at = load_scale<V>(lanes, 0, inverts);
  one(load_f32<V>(in[0]), at, load_random<R, V>(r), out);
  copy(to + i, out, rest);
}

/// Processes a row's elements in groups of as many as V has lanes. Calls one(x, scales, random, to)
/// for each group, which must write one T for each lane to `to`. `inverts`: `scales` also has the
/// inverses of the scales (with_inverse).
template <class R, class V, class T, class One>
CPD_FN void for_elements(const ScaledRun run, T* to, bool inverts, One one) {
  constexpr int kLanes = Lanes<V>::count;
  const int64_t whole = run.n - run.n % kLanes;
  const auto group = [&](int64_t i, ElementScale<V> at) {
    one(load_f32<V>(run.x + i), at, load_random<R, V>(run.random + i), to + i);
  };
  if (run.run == 1) {
    for (int64_t i = 0; i < whole; i += kLanes) group(i, load_scale<V>(run, i, inverts));
  } else {
    for (int64_t begin = 0, b = 0; begin < whole; begin += run.run, ++b) {
      const ElementScale<V> at = splat_scale<V>(run, b, inverts);
      const int64_t end = least(begin + run.run, whole);
      for (int64_t i = begin; i < end; i += kLanes) group(i, at);
    }
  }
  if (whole < run.n) last_elements<R, V>(run, whole, run.n - whole, to, inverts, one);
}

/// Passes three properties of a plan to `body` as template arguments, body.operator()<R, route,
/// V>(): the rounding rule R, the route (the method of division by scales) and the lane type V in
/// which the route computes.
template <class Body>
CPD_FN void with_route(const ScaledPlan& plan, ElementRoute route, Body body) {
  if (route == ElementRoute::wide) {
    return with_mode(plan.element.mode, [&]<Rounding mode>() {
      body.template operator()<Rule<mode>, ElementRoute::wide, D>();
    });
  }
  with_rule<F>(plan.element, [&]<class R>() {
    if (route == ElementRoute::multiply) {
      body.template operator()<R, ElementRoute::multiply, F>();
    } else {
      body.template operator()<R, ElementRoute::divide, F>();
    }
  });
}

template <class R, ElementRoute kRoute, class V>
CPD_FN auto scaled_value(V x, ElementScale<V> at, Unsigned<V> random, const ScaledPlan& plan,
                         bool apart) {
  const V rounded = round<R>(scaled_down<kRoute>(x, at, plan), random, plan.element);
  if (apart) at = {at.factor, plan.two_levels ? at.scale : splat<V>(1), splat<V>(1)};
  return scaled_value(rounded, at);
}

/// A vector of binary32 bit patterns, with as many elements as V has lanes.
template <class V>
using BitsOf = typename Narrow<V>::U32;

/// The way to store values: by plain stores, by non-temporal stores, or as bf16 cut toward zero.
enum class Put : uint8_t { plain, streaming, cut };

/// Stores values in binary32, or in bf16 rounded to nearest-even (Put::cut: toward zero). Every NaN
/// must be 0x7FC00000. For bf16, returns the values' binary32 patterns: bf16 does not represent a
/// value if its lower 16 bits are not 0. For binary32, returns zeros.
template <class V, Put kPut>
CPD_FN BitsOf<V> put_values(float* to, typename Narrow<V>::F32 values) {
  if constexpr (kPut == Put::streaming) {
    store_streaming(to, values);
  } else {
    store(to, values);
  }
  return BitsOf<V>{};
}
template <class V, Put kPut>
CPD_FN BitsOf<V> put_values(Bf16* to, typename Narrow<V>::F32 values) {
  using U = BitsOf<V>;
  const U bits = bits_as<U>(values);
  U rounded = bits;
  if constexpr (kPut != Put::cut) rounded += splat<U>(0x7FFF) + ((bits >> 16) & splat<U>(1));
  if constexpr (Lanes<V>::count == Lanes<F>::count) {
    store_value(to, bits_as<F>(rounded));
  } else {
    uint32_t each[Lanes<V>::count];
    store(each, rounded);
    for (int k = 0; k < Lanes<V>::count; ++k) {
      to[k].half = static_cast<std::uint16_t>(each[k] >> 16);
    }
  }
  return bits;
}

/// Rounds a row's elements. Returns whether T represents all results exactly.
template <class R, ElementRoute kRoute, class V, Put kPut, class T>
CPD_FN bool round_run(const ScaledPlan plan, const ScaledRun run, T* y) {
  constexpr int kLanes = Lanes<V>::count;
  BitsOf<V> lost{};
  for_elements<R, V>(run, y, false, [&](V x, ElementScale<V> at, Unsigned<V> random, T* to) {
    lost = lost | put_values<V, kPut>(to, scaled_value<R, kRoute>(x, at, random, plan, run.apart));
  });
  uint32_t each[kLanes], any = 0;
  store(each, lost);
  for (int k = 0; k < kLanes; ++k) any |= each[k];
  return (any & 0xFFFF) == 0;
}

/// Finds the scales of a row's values in a group of four memory pages (pages.h). More than one
/// value must share a scale (run.run > 1), and the row's length must be a multiple of kGroup.
class PageScales {
 public:
  CPD_FN explicit PageScales(const ScaledRun& run)
      : shift_(__builtin_ctzll(static_cast<unsigned long long>(least(run.run, kPage)))) {}
  CPD_FN void enter_group(const ScaledRun& run, int64_t group) {
    for (int64_t page = 0; page < kPages; ++page) first_[page] = (group + page * kPage) / run.run;
  }
  /// Returns the scale of value i of memory page `page` in the current group.
  CPD_FN ElementScale<F> of(const ScaledRun& run, int64_t page, int64_t i) const {
    return splat_scale<F>(run, first_[page] + (i >> shift_));
  }

 private:
  int shift_;
  int64_t first_[kPages];
};

/// Calls one(page, i, at, scales) for values begin … end - 1 of each of the four memory pages of a
/// group, one vector at a time; `at` is the index of the vector's first element. begin and end must
/// be multiples of kBlock (pages.h). Visits the pages in turn, with one block's values (at most two
/// cache lines) from each. Prefetches lines of the next group.
template <class One>
CPD_FN void for_page_blocks(const ScaledRun& run, const PageScales& scales, int64_t group,
                            int64_t begin, int64_t end, One one) {
  const int64_t step = least(run.run, 2 * kLine);
  for (int64_t i = begin; i < end; i += step) {
    for (int64_t page = 0; page < kPages; ++page) {
      const int64_t first = in_turn<2 * kLine>(page, i);
      const ElementScale<F> scale = scales.of(run, page, first);
      for (int64_t k = first; k < first + step; k += Lanes<F>::count) {
        const int64_t at = group + page * kPage + k;
        if (k % kLine == 0) prefetch_group(run.x + at);
        one(page, k, at, scale);
      }
    }
  }
}

CPD_FN bool fits_pages(const ScaledRun& run) {
  return run.rows == 1 && run.run > 1 && run.n % kGroup == 0;
}

/// Rounds a row, four memory pages at a time (pages.h), with non-temporal stores.
template <class R, ElementRoute kRoute>
CPD_FN void round_pages(const ScaledPlan plan, const ScaledRun run, float* y) {
  PageValues values(y);
  PageScales scales(run);
  for (int64_t group = 0; group < run.n; group += kGroup) {
    scales.enter_group(run, group);
    for (int64_t begin = 0; begin < kPage; begin += kBlock) {
      values.enter_block(group + begin);
      for_page_blocks(
          run, scales, group, begin, begin + kBlock,
          [&](int64_t page, int64_t k, int64_t i, auto scale) {
            const auto random = load_random<R, F>(run.random + i);
            values.put(group + begin, page, k - begin,
                       scaled_value<R, kRoute>(load<F>(run.x + i), scale, random, plan, run.apart));
          });
      values.leave_block(group + begin);
    }
  }
}

/// Rounds all rows to T. Returns whether T represents all results exactly. Only binary32 results
/// are written by non-temporal stores.
template <class T>
CPD_CALL bool round_blocks_to(const ScaledPlan& plan, ElementRoute route, const ScaledRun& all,
                              T* y, int64_t y_stride) {
  constexpr int kLanes = Lanes<F>::count;
  constexpr bool kFloats = sizeof(T) == sizeof(float);
  bool in_pages = false;
  if constexpr (kFloats) in_pages = all.streaming && holds_floats(y) && fits_pages(all);
  const bool stream =
      kFloats && all.streaming && is_aligned(y) && (all.rows == 1 || y_stride % kLanes == 0);
  // If `is_short`, a rounded element has at most 8 significant bits and scales are powers of two.
  // bf16 then represents each result, unless the result is too small for bf16.
  const bool is_short = plan.of_powers && !plan.two_levels && plan.element.man < 8;
  bool holds = true;
  ScaledRun run = all;
  with_route(plan, route, [&]<class R, ElementRoute kRoute, class V>() {
    constexpr bool kNarrow = kRoute != ElementRoute::wide;
    if constexpr (kNarrow && kFloats) {
      if (in_pages) return round_pages<R, kRoute>(plan, run, y);
    }
    for (int64_t row = 0; row < all.rows; ++row) {
      // If this row is short, or is the only row, prefetches the values that follow the row. The
      // hardware prefetches only within longer rows.
      for (int64_t k = 0; (all.rows == 1 || run.n <= 8 * kLine) && k < run.n; k += kLine) {
        __builtin_prefetch(run.x + run.n + k);
      }
      bool is_cut = false;
      if constexpr (!kFloats && kRoute == ElementRoute::multiply) {
        is_cut = is_short && round_run<R, kRoute, V, Put::cut>(plan, run, y);
      }
      if (kNarrow && stream) {
        holds &= round_run < R, kRoute, V,
            kNarrow && kFloats ? Put::streaming : Put::plain > (plan, run, y);
      } else if (!is_cut) {
        holds &= round_run<R, kRoute, V, Put::plain>(plan, run, y);
      }
      run.x += run.x_stride;
      if (run.random != nullptr) run.random += run.random_stride;
      y += y_stride;
    }
  });
  if (stream || in_pages) fence_streaming<F>();
  return holds;
}

template <class R, ElementRoute kRoute, class V>
CPD_FN Unsigned<V> scaled_code(V x, ElementScale<V> at, Unsigned<V> random, const ScaledPlan& plan,
                               bool is_uniform) {
  if constexpr (kRoute == ElementRoute::wide && R::mode == Rounding::stochastic) {
    Unsigned<V> codes;
    if (is_uniform && uniform_codes<R>(x, at, random, plan.element, &codes)) return codes;
  }
  return round_to_whole_code<R>(scaled_down<kRoute>(x, at, plan), random, plan.element);
}

/// Stores the packed codes of a range of elements.
template <class R, ElementRoute kRoute, class V>
CPD_FN void encode_run(const ScaledPlan plan, const ScaledRun& run, uint8_t* packed) {
  alignas(64) uint32_t codes[kRun];
  alignas(64) uint8_t bytes[4 * kRun + kPackSlack];
  const Packer<Unsigned<F>> packer(plan.element.bits);
  const bool is_uniform = kRoute == ElementRoute::wide && has_uniform_codes(plan);
  for (int64_t i = 0; i < run.n; i += kRun) {
    for (int64_t k = 0; k < kRun; k += kLine) prefetch_group(run.x + i + k);
    ScaledRun part = run;
    part.n = least(kRun, run.n - i);
    part.x += i;
    part.factor += i / part.run;
    part.scale += i / part.run;
    part.outer += i / part.run;
    if (part.random != nullptr) part.random += i;
    if (part.n < kRun) __builtin_memset(codes, 0, sizeof(codes));
    for_elements<R, V>(part, codes, is_uniform,
                       [&](V x, ElementScale<V> at, Unsigned<V> random, uint32_t* to) {
                         store_u32<V>(to, scaled_code<R, kRoute>(x, at, random, plan, is_uniform));
                       });
    packer.pack(codes, kRun, bytes);
    copy(packed + i * plan.element.bits / 8, bytes, (part.n * plan.element.bits + 7) / 8);
  }
}

/// Stores the packed codes of whole groups of four memory pages by non-temporal stores.
template <class R, ElementRoute kRoute>
CPD_FN void encode_pages(const ScaledPlan plan, const ScaledRun run, uint8_t* packed) {
  constexpr int64_t kPart = 2 * kBlock;  // whole lines of codes of any width
  alignas(64) uint32_t codes[kPages][kPart];
  alignas(64) uint8_t bytes[4 * kPart + kPackSlack];
  const int64_t bits = plan.element.bits;
  const Packer<Unsigned<F>> packer(plan.element.bits);
  PageScales scales(run);
  for (int64_t part = 0; part < run.n / kPages; part += kPart) {
    const int64_t begin = part % kPage;
    const int64_t group = part / kPage * kGroup;
    if (begin == 0) scales.enter_group(run, group);
    for_page_blocks(run, scales, group, begin, begin + kPart,
                    [&](int64_t page, int64_t k, int64_t i, auto scale) {
                      const auto random = load_random<R, F>(run.random + i);
                      store(codes[page] + k - begin,
                            scaled_code<R, kRoute>(load<F>(run.x + i), scale, random, plan, false));
                    });
    for (int64_t page = 0; page < kPages; ++page) {
      packer.pack(codes[page], kPart, bytes);
      copy_streaming(packed + (group + page * kPage + begin) * bits / 8, bytes, kPart * bits / 8);
    }
  }
}

}  // namespace

void outer_scales(const ScaledPlan& plan, int64_t n, const float* largest, float* scale,
                  float* encode) {
  float* const arrays[] = {const_cast<float*>(largest), scale, encode};
  for_groups<D, 1>(n, arrays, [&](float* const(&at)[3]) {
    const OuterScale<D> outer = outer_scale(load_f32<D>(at[0]), plan);
    store_f32(at[1], outer.scale);
    store_f32(at[2], outer.encode);
  });
}

bool block_scales(const ScaledPlan& plan, ElementRoute route, double share, int64_t n,
                  const float* largest, const float* outer, const float* encode, float* scale,
                  float* factor, float* decode) {
  float* const arrays[] = {const_cast<float*>(largest),
                           const_cast<float*>(outer),
                           const_cast<float*>(encode),
                           scale,
                           factor,
                           decode};
  if (steps_in_binary32(plan)) return scales_of<F>(plan, route, share, n, arrays);
  return scales_of<D>(plan, route, share, n, arrays);
}

bool given_scales(const ScaledPlan& plan, ElementRoute route, int64_t n, const float* scale,
                  const float* outer, float* factor) {
  float* const arrays[] = {const_cast<float*>(scale), const_cast<float*>(outer), factor};
  D outside{};
  for_groups<D, 2>(n, arrays, [&](float* const(&at)[3]) {
    const D given = load_f32<D>(at[0]);
    const D factor = factor_of(given, load_f32<D>(at[1]), plan);
    store_f32(at[2], element_by(route, BlockScale<D>{given, factor}));
    // Besides the scales that is_outside reports, division in binary32 excludes a scale of 0: the
    // caller may give this scale for a block that contains an infinity.
    const auto beyond = is_outside(route, given) | (given == D{});
    outside = select(beyond, splat<D>(1), outside);
  });
  return !all_at_most(outside, 0);
}

void spread(int64_t run, int64_t n, const float* each, float* all) {
  constexpr int kLanes = Lanes<F>::count;
  for (int64_t begin = 0; begin < n; begin += run, ++each) {
    const int64_t end = least(begin + run, n);
    const F value = splat<F>(*each);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) store(all + i, value);
    for (; i < end; ++i) all[i] = *each;
  }
}

bool round_blocks(const ScaledPlan& plan, ElementRoute route, const ScaledRun& run,
                  const Strided& out) {
  const int64_t stride = out.rank > 1 ? out.stride[0] : 0;
  if (out.dtype == DType::bf16) {
    return round_blocks_to(plan, route, run, static_cast<Bf16*>(out.data), stride);
  }
  return round_blocks_to(plan, route, run, static_cast<float*>(out.data), stride);
}

void encode_blocks(const ScaledPlan& plan, ElementRoute route, const ScaledRun& run,
                   uint8_t* packed) {
  const bool in_pages = run.streaming && fits_pages(run);
  with_route(plan, route, [&]<class R, ElementRoute kRoute, class V>() {
    if constexpr (kRoute != ElementRoute::wide) {
      if (in_pages) return encode_pages<R, kRoute>(plan, run, packed);
    }
    encode_run<R, kRoute, V>(plan, run, packed);
  });
  if (in_pages) fence_streaming<F>();
}

void scale_blocks(bool wide, const ScaledRun& run, float* y) {
  using Plain = Rule<Rounding::nearest_even>;
  const auto all = [&]<class V>() {
    for_elements<Plain, V>(run, y, false, [](V x, ElementScale<V> at, Unsigned<V>, float* to) {
      store(to, scaled_value(x, at));
    });
  };
  if (wide) {
    all.template operator()<D>();
  } else {
    all.template operator()<F>();
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
