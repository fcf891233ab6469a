// SPDX-License-Identifier: Apache-2.0
//
// Rounds values to levels, which are fractions of their bucket's norm (numeric/scaled/levels.h):
// computes codes, decodes codes to values, and sums values for norms and standard deviations.
#include "cpd/numeric/scaled/levels.h"

#include "cpd/numeric/round/codec.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/pages.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint8_t;

/// Splits elements begin … begin + n - 1 into ranges within one bucket. Calls run(norm, i, count)
/// for each range. The range begins at element begin + i, and `norm` is its bucket's norm.
template <class Run>
CPD_FN void for_buckets(int64_t bucket, const float* norms, int64_t begin, int64_t n, Run run) {
  for (int64_t i = 0; i < n;) {
    const int64_t number = (begin + i) / bucket;
    const int64_t count = least(n - i, (number + 1) * bucket - begin - i);
    run(norms[number], i, count);
    i += count;
  }
}

// --- codes ---------------------------------------------------------------------------------------

/// Replaces estimated codes: computes codes[i] exactly for each lane i in which `unclear` is not 0.
template <class I>
CPD_BODY void exact_codes(const LevelPlan& plan, float norm, I unclear, const float* x,
                          const uint32_t* random, uint32_t* codes) {
  constexpr int kLanes = sizeof(I) / sizeof(std::int32_t);
  std::int32_t is_unclear[kLanes];
  store(is_unclear, unclear);
  for (int i = 0; i < kLanes; ++i) {
    if (is_unclear[i] != 0) codes[i] = level_code(plan, x[i], norm, random[i]);
  }
}

/// Returns how many values ahead encoding prefetches x: a bucket, if it has more than kGroup and at
/// most 16 kGroup values; else kGroup values (four memory pages).
CPD_FN int64_t block_ahead(int64_t bucket) {
  return bucket > kGroup && bucket <= 16 * kGroup ? bucket : kGroup;
}

template <bool kIntervals, bool kHasNan, class V, bool kFine>
CPD_FN void code_bucket(const LevelPlan& plan, const LevelLanes<V, kFine>& rule, float norm,
                        int64_t n, const float* x, const uint32_t* random, uint32_t* codes) {
  using Rule = LevelLanes<V, kFine>;
  using Value = typename Rule::Value;
  using U = typename Rule::U;
  using I = typename Rule::I;
  constexpr int kLanes = Lanes<V>::count;
  const auto step = Rule::step_of(plan, norm);
  const int64_t ahead = block_ahead(plan.bucket);
  const auto code = [&](const float* from, const uint32_t* r, uint32_t* to) {
    U lanes;
    const auto unclear =
        rule.template code<kIntervals, kHasNan>(load<Value>(from), step, load<U>(r), &lanes);
    store(to, lanes);
    if (__builtin_expect(any(unclear), 0)) {
      exact_codes(plan, norm, select(unclear, splat<I>(1), I{}), from, r, to);
    }
  };
  for_lanes<V>(
      n,
      [&](int64_t i) {
        __builtin_prefetch(x + i + ahead, 0, 2);
        code(x + i, random + i, codes + i);
      },
      [&](int64_t i, int64_t rest) {
        float in[kLanes] = {};
        uint32_t r[kLanes] = {};
        uint32_t out[kLanes];
        copy(in, x + i, rest);
        copy(r, random + i, rest);
        code(in, r, out);
        copy(codes + i, out, rest);
      });
}

CPD_BODY void code_spaced(const LevelPlan& plan, float norm, int64_t n, const float* x,
                          const uint32_t* random, uint32_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = level_code(plan, x[i], norm, random[i]);
}

/// Chooses between the lane types (levels.h) that encode a plan's buckets.
struct Coder {
  CPD_FN explicit Coder(const LevelPlan& p) : plan(p), coarse(p), fine(p), wide(p) {}

  LevelPlan plan;
  LevelLanes<F> coarse;
  LevelLanes<F, true> fine;
  LevelLanes<D> wide;
};

template <bool kIntervals, bool kHasNan>
CPD_FN void code_by_norm(const Coder& coder, float norm, int64_t n, const float* x,
                         const uint32_t* random, uint32_t* codes) {
  const LevelPlan& plan = coder.plan;
  const auto code = [&](const auto& rule) {
    code_bucket<kIntervals, kHasNan>(plan, rule, norm, n, x, random, codes);
  };
  if (!kHasNan && !(norm > 0)) {  // zero, or NaN
    __builtin_memset(codes, 0, static_cast<std::size_t>(n) * sizeof(uint32_t));
  } else if (!kIntervals && !kHasNan && plan.spacing != nullptr) {
    code_spaced(plan, norm, n, x, random, codes);
  } else if (!(norm >= 0x1p-60F && norm <= 0x1p60F)) {
    code(coder.wide);
  } else if (kHasNan || plan.steps <= 255) {
    code(coder.coarse);
  } else {
    code(coder.fine);
  }
}

template <bool kIntervals, bool kHasNan>
CPD_FN void encode_all(const LevelPlan& shared, int64_t first, int64_t before, int64_t n,
                       const float* x, const float* norms, const uint32_t* given, uint8_t* packed) {
  const Coder coder(shared);
  const LevelPlan& plan = coder.plan;
  const Packer<Unsigned<F>> packer(plan.bits);
  alignas(64) uint32_t codes[kRun];
  alignas(64) uint8_t bytes[4 * kRun + kPackSlack];
  alignas(64) uint32_t run[kRun + kBlock] = {};  // zeros where the plan has no random bits
  const int64_t lead = first % kBlock;
  for (int64_t i = 0; i < n; i += kRun) {
    const int64_t count = least(kRun, n - i);
    const uint32_t* random = given + i;
    if (given == nullptr) {
      random = run + lead;
      if (plan.random_bits > 0) {
        random_run(plan.random_bits, plan.seed, plan.stream, first + i - lead,
                   (lead + count + kBlock - 1) / kBlock * kBlock, run);
      }
    }
    if (count < kRun) __builtin_memset(codes, 0, sizeof(codes));
    for_buckets(plan.bucket, norms, before + i, count, [&](float norm, int64_t j, int64_t part) {
      code_by_norm<kIntervals, kHasNan>(coder, norm, part, x + i + j, random + j, codes + j);
    });
    packer.pack(codes, kRun, bytes);
    copy(packed + i * plan.bits / 8, bytes, (count * plan.bits + 7) / 8);
  }
}

// --- values --------------------------------------------------------------------------------------

template <class V, bool kIntervals, bool kDivides, bool kSpare = false, class Map>
CPD_FN void value_bucket(const LevelPlan& plan, float norm, int64_t n, const uint32_t* codes,
                         float* y, Map map) {
  using Rule = LevelValues<V>;
  using U = typename Rule::U;
  const Rule rule(plan, norm);
  const auto value = [&](const uint32_t* from) {
    return map(rule.template value<kIntervals, kDivides, kSpare>(load<U>(from)));
  };
  for_lanes<V>(
      n, [&](int64_t i) { store(y + i, value(codes + i)); },
      [&](int64_t i, int64_t rest) {
        uint32_t in[Lanes<V>::count] = {};
        float out[Lanes<V>::count];
        copy(in, codes + i, rest);
        store(out, value(in));
        copy(y + i, out, rest);
      });
}

template <class Map>
CPD_FN void value_by_norm(const LevelPlan& plan, float norm, int64_t n, const uint32_t* codes,
                          float* y, Map map) {
  if (!(norm - norm == 0)) {
    for (int64_t i = 0; i < n; ++i) y[i] = bits_as<float>(0x7FC00000U);
  } else if (plan.spacing != nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] = map(spaced_value(plan, codes[i], norm));
  } else if (plan.intervals) {
    value_bucket<D, true, true>(plan, norm, n, codes, y, map);
  } else if (plan.steps == 1) {
    value_bucket<F, false, false>(plan, norm, n, codes, y, map);
  } else if (has_spare_codes(plan)) {
    value_bucket<D, false, true, true>(plan, norm, n, codes, y, map);
  } else {
    value_bucket<D, false, true>(plan, norm, n, codes, y, map);
  }
}

template <class Map>
CPD_FN void decode_all(const LevelPlan& shared, int64_t before, int64_t n, const uint8_t* packed,
                       const float* norms, float* y, Map map) {
  const LevelPlan plan = shared;
  const Unpacker<Unsigned<F>> unpacker(plan.bits);
  const int64_t size = (n * plan.bits + 7) / 8;
  uint8_t last[4 * kRun + kPackSlack] = {};
  alignas(64) uint32_t codes[kRun];
  for (int64_t i = 0; i < n; i += kRun) {
    const int64_t offset = i * plan.bits / 8;
    const uint8_t* from = packed + offset;
    if (offset + kRun * plan.bits / 8 + kPackSlack > size) {  // the unpacker reads beyond
      copy(last, from, least(kRun * plan.bits / 8, size - offset));
      from = last;
    }
    unpacker.unpack(from, kRun, codes);
    for_buckets(plan.bucket, norms, before + i, least(kRun, n - i),
                [&](float norm, int64_t j, int64_t part) {
                  value_by_norm(plan, norm, part, codes + j, y + i + j, map);
                });
  }
}

// --- sums ----------------------------------------------------------------------------------------

/// Sixteen partial sums of differences from `mean`, and of the squares of these differences. add()
/// takes sixteen values, one for each partial sum. kChecks: ignores NaN and infinite values.
struct PartialMoments {
  static constexpr int kLanes = Lanes<D>::count;
  static constexpr int kVectors = kPartialSums / kLanes;

  double mean;
  D sums[kVectors] = {};
  D squares[kVectors] = {};

  template <bool kChecks>
  CPD_FN void add(const float* x) {
    using Value = typename Narrow<D>::F32;
    for (int k = 0; k < kVectors; ++k) {
      D d = convert<D>(load<Value>(x + k * kLanes)) - splat<D>(mean);
      if constexpr (kChecks) d = select(d - d == D{}, d, D{});
      sums[k] = sums[k] + d;
      squares[k] = fma(d, d, squares[k]);
    }
  }
};

/// Returns the number of NaN and infinite values among sixteen values. Updates `largest`, which
/// holds for each lane the bit pattern of the largest finite magnitude so far.
CPD_FN int count_non_finite(const float* x, Signed<F>& largest) {
  using I = Signed<F>;
  const I infinity = splat<I>(Pattern<F>::infinity);
  I most{};
  I each[kPartialSums / Lanes<F>::count];
  for (int i = 0; i < kPartialSums; i += Lanes<F>::count) {
    const I a = (I)(load<Unsigned<F>>(x + i) & splat<Unsigned<F>>(Pattern<F>::magnitude));
    each[i / Lanes<F>::count] = a;
    most = max(most, a);
  }
  if (__builtin_expect(!any(most >= infinity), 1)) {
    largest = max(largest, most);
    return 0;
  }
  int count = 0;
  for (const I a : each) {
    const auto is_finite = a < infinity;
    largest = max(largest, select(is_finite, a, I{}));
    std::int32_t lanes[Lanes<F>::count];
    store(lanes, select(is_finite, I{}, splat<I>(1)));
    for (const std::int32_t lane : lanes) count += lane;
  }
  return count;
}

}  // namespace

void encode_levels(const LevelPlan& plan, int64_t first, int64_t before, int64_t n, const float* x,
                   const float* norms, const uint32_t* random, uint8_t* packed) {
  if (plan.intervals) {
    encode_all<true, false>(plan, first, before, n, x, norms, random, packed);
  } else if (plan.has_nan) {
    encode_all<false, true>(plan, first, before, n, x, norms, random, packed);
  } else {
    encode_all<false, false>(plan, first, before, n, x, norms, random, packed);
  }
}

void decode_levels(const LevelPlan& plan, int shift, float divisor, int64_t before, int64_t n,
                   const uint8_t* packed, const float* norms, float* y) {
  const float factor = bits_as<float>(static_cast<uint32_t>(shift + 127) << 23);
  if (shift == 0 && divisor == 1) {
    decode_all(plan, before, n, packed, norms, y, Identity{});
  } else if (is_power_of_two(divisor)) {
    decode_all(plan, before, n, packed, norms, y, Rescaled<float, false>{factor, 1 / divisor});
  } else {
    decode_all(plan, before, n, packed, norms, y, Rescaled<float, true>{factor, divisor});
  }
}

void moments(int64_t n, const float* x, double mean, Moments* result) {
  PartialMoments moments{mean};
  Signed<F> largest{};
  int64_t finite = n;
  const auto add = [&](const float* from, int padding) {
    const int missing = count_non_finite(from, largest);
    if (__builtin_expect(missing == 0, 1)) return moments.add<false>(from);
    finite -= missing - padding;
    moments.add<true>(from);
  };
  int64_t i = 0;
  for (; i + kPartialSums <= n; i += kPartialSums) {
    prefetch_group(x + i);
    add(x + i, 0);
  }
  if (i < n) {
    float last[kPartialSums];
    for (float& v : last) v = bits_as<float>(0x7FC00000U);  // not counted
    copy(last, x + i, n - i);
    add(last, static_cast<int>(kPartialSums - (n - i)));
  }
  double sums[kPartialSums];
  double squares[kPartialSums];
  for (int k = 0; k < PartialMoments::kVectors; ++k) {
    store(sums + k * PartialMoments::kLanes, moments.sums[k]);
    store(squares + k * PartialMoments::kLanes, moments.squares[k]);
  }
  *result = {add_partial_sums(sums), add_partial_sums(squares), finite,
             bits_as<float>(largest_lane(largest))};
}

}  // namespace CPD_ISA
}  // namespace cpd
