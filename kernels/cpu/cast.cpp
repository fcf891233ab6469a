// SPDX-License-Identifier: Apache-2.0
//
// Casts: rounds arrays, generates the random integers for stochastic rounding, and finds the
// largest magnitude of an array.
#include "kernels/cpu/elements.h"
#include "kernels/cpu/pages.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

// --- rounding ------------------------------------------------------------------------------------

template <class R, class V, class T, class Map>
CPD_FN void round_span(RoundPlan plan, int64_t n, const T* x, const uint32_t* random, T* y,
                       Map map) {
  for_lanes<V>(
      n,
      [&](int64_t i) {
        const V v = map(load_value<V>(x + i));
        store_value(y + i, round<R>(v, load_random<R, V>(random + i), plan));
      },
      [&](int64_t i, int64_t rest) {
        T in[Lanes<V>::count] = {};
        T out[Lanes<V>::count];
        uint32_t r[Lanes<V>::count] = {};
        copy(in, x + i, rest);
        if constexpr (R::mode == Rounding::stochastic) copy(r, random + i, rest);
        store_value(out, round<R>(map(load_value<V>(in)), load_random<R, V>(r), plan));
        copy(y + i, out, rest);
      });
}

template <class V, class T, class Map>
CPD_FN void round_all(const RoundPlan& shared, int64_t first, int64_t n, const T* x,
                      const uint32_t* random, T* y, Map map) {
  const RoundPlan plan = shared;  // a local copy that stores to y cannot change
  with_rule<V>(plan, [&]<class R>() {
    with_random<R>(plan, first, n, random, n, [&](int64_t i, int64_t count, const uint32_t* r) {
      round_span<R, V>(plan, count, x + i, r, y + i, map);
    });
  });
}

/// Rounds whole groups of four memory pages with non-temporal stores. n must be a multiple of
/// kGroup.
template <class R, class Map>
CPD_FN void round_pages(RoundPlan plan, int64_t first, int64_t n, const float* x,
                        const uint32_t* random, float* y, Map map) {
  PageIntegers<R> integers(plan, first, n, random);
  PageValues values(y);
  for_blocks(n, [&](int64_t block) {
    values.enter_block(block);
    for_lines(integers, block, [&](int64_t page, int64_t line, const uint32_t* r) {
      const int64_t at = block + page * kPage + line;
      prefetch_line(x + at, block);
      for (int64_t i = 0; i < kLine; i += Lanes<F>::count) {
        const F v = map(load<F>(x + at + i));
        values.put(block, page, line + i, round<R>(v, load_random<R, F>(r + i), plan));
      }
    });
    values.leave_block(block);
  });
}

/// Rounds n values. With `streaming`, uses non-temporal stores if there are enough values.
template <class V, class Map>
CPD_FN void round_floats(const RoundPlan& plan, int64_t first, int64_t n, const float* x,
                         const uint32_t* random, float* y, bool streaming, Map map) {
  int64_t done = 0;
  if constexpr (Lanes<V>::mantissa == 23) {
    if (streaming && holds_floats(y)) {
      done = n - n % kGroup;
      with_rule<V>(plan, [&]<class R>() { round_pages<R>(plan, first, done, x, random, y, map); });
      fence_streaming<F>();
    }
  }
  if (done == n) return;
  round_all<V>(plan, first + done, n - done, x + done, random == nullptr ? random : random + done,
               y + done, map);
}

/// Rounds n values with one random integer each. Rounds a range of values to a buffer in the L1
/// cache, and then writes whole cache lines of the buffer by non-temporal stores.
template <class R>
CPD_FN void stream_row(const RoundPlan& plan, int64_t n, const float* x, const uint32_t* random,
                       float* y) {
  alignas(64) float part[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = least(kBlock, n - i);
    round_span<R, F>(plan, count, x + i, random == nullptr ? random : random + i, part, Identity{});
    copy_streaming(y + i, part, count);
  }
}

/// Rounds rows of contiguous elements with one random integer for each element.
CPD_FN void round_rows(const CastCall& call) {
  const RoundPlan plan = *call.plan;
  const int64_t rows = call.x.shape[0];
  const int64_t n = call.x.shape[1];
  const bool is_random = plan.mode == Rounding::stochastic;
  const auto for_rows = [&](auto* x, auto* y, auto row) {
    const auto* random = static_cast<const uint32_t*>(call.random.data);
    for (int64_t r = 0; r < rows; ++r) {
      row(x + r * call.x.stride[0], is_random ? random + r * call.random.stride[0] : nullptr,
          y + r * call.out.stride[0]);
    }
  };
  const auto in_binary64 = [&](const auto* from, const uint32_t* integers, auto* to) {
    round_all<D>(plan, 0, n, from, integers, to, Identity{});
  };
  if (call.x.dtype == DType::f64) {
    return for_rows(static_cast<const double*>(call.x.data), static_cast<double*>(call.out.data),
                    in_binary64);
  }
  const auto* const x = static_cast<const float*>(call.x.data);
  auto* const y = static_cast<float*>(call.out.data);
  if (plan.wide) return for_rows(x, y, in_binary64);
  // Rows shorter than kBlock values do not use non-temporal stores, because too many of their cache
  // lines would be written in two parts.
  const bool streams = call.streaming && holds_floats(y) && n >= kBlock;
  const int64_t x_stride = call.x.stride[0];
  with_rule<F>(plan, [&]<class R>() {
    for_rows(x, y, [&](const float* from, const uint32_t* integers, float* to) {
      // Prefetches the next row by an instruction, because the hardware does not prefetch from
      // other memory pages.
      for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(from + 2 * x_stride + i);
      if (streams) return stream_row<R>(plan, n, from, integers, to);
      round_span<R, F>(plan, n, from, integers, to, Identity{});
    });
  });
  if (streams) fence_streaming<F>();
}

}  // namespace

void cast(const CastCall& call) {
  if (call.x.rank > 1) return round_rows(call);
  const RoundPlan& plan = *call.plan;
  const auto* const random = static_cast<const uint32_t*>(call.random.data);
  if (call.x.dtype == DType::f64) {
    return round_all<D>(plan, call.first, call.n, static_cast<const double*>(call.x.data), random,
                        static_cast<double*>(call.out.data), Identity{});
  }
  if (call.x.dtype == DType::bf16) {
    return round_all<F>(plan, call.first, call.n, static_cast<const Bf16*>(call.x.data), random,
                        static_cast<Bf16*>(call.out.data), Identity{});
  }
  with_scale(plan, call.shift, [&]<class V>(auto map) {
    round_floats<V>(plan, call.first, call.n, static_cast<const float*>(call.x.data), random,
                    static_cast<float*>(call.out.data), call.streaming, map);
  });
}

void widen_bf16(int64_t n, const std::uint16_t* x, float* y) {
  const auto* from = reinterpret_cast<const Bf16*>(x);
  const auto rest = [&](int64_t i, int64_t count) {
    for (int64_t k = i; k < i + count; ++k) y[k] = load_value<float>(from + k);
  };
  for_lanes<F>(n, [&](int64_t i) { store_value(y + i, load_value<F>(from + i)); }, rest);
}

void random_integers(int bits, uint64_t seed, uint64_t stream, int64_t first, int64_t n,
                     uint32_t* out) {
  alignas(64) uint32_t last[kBlock];
  for (int64_t i = 0; i < n; i += kRun) {
    const int64_t count = least(kRun, n - i);
    const int64_t whole = count - count % kBlock;
    random_run(bits, seed, stream, first + i, whole, out + i);
    if (whole == count) continue;
    random_run(bits, seed, stream, first + i + whole, kBlock, last);
    copy(out + i + whole, last, count - whole);
  }
}

float max_abs(int64_t n, const float* x, int64_t* non_finite) {
  using I = Signed<F>;
  using U = Unsigned<F>;
  using P = Pattern<F>;
  I largest{};
  I finite{};  // counts down with vectors, whose set mask is -1; up with one lane, where it is 1
  std::int32_t best = 0;
  int64_t bad = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = least(kBlock, n - begin);
    for_lanes<F>(
        count,
        [&](int64_t i) {
          const I a = (I)(load<U>(x + begin + i) & splat<U>(P::magnitude));
          const auto is_finite = a < splat<I>(P::infinity);
          largest = max(largest, select(is_finite, a, I{}));
          finite = finite + select(is_finite, I{}, splat<I>(1));
        },
        [&](int64_t i, int64_t rest) {
          for (int64_t j = begin + i; j < begin + i + rest; ++j) {
            const auto a = static_cast<std::int32_t>(load<uint32_t>(x + j) & P::magnitude);
            if (a >= static_cast<std::int32_t>(P::infinity)) {
              ++bad;
            } else {
              best = max(best, a);
            }
          }
        });
    std::int32_t lane[Lanes<F>::count];
    store(lane, finite);
    for (const std::int32_t each : lane) bad += each;
    finite = I{};
  }
  std::int32_t lane[Lanes<F>::count];
  store(lane, largest);
  for (const std::int32_t each : lane) best = max(best, each);
  *non_finite += bad;
  return bits_as<float>(best);
}

}  // namespace CPD_ISA
}  // namespace cpd
