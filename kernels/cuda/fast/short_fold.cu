// SPDX-License-Identifier: Apache-2.0
//
// Sums over ranks for the usual all-reduces in few instructions. Supports sequential sums and Kahan
// sums that are rounded to nearest-even (numeric/sums/fast_sum.h). The terms are the ranks of one
// group or, in an all-reduce without groups, all ranks in rank order. A thread has four neighboring
// values and reads their codes from some ranks before it adds the first code. The general kernel
// computes one value in each thread by sum_of (reduce_tile.cuh); this kernel uses sum_of for values
// that exceed the plan's limit.
#include "cpd/numeric/sums/fast_sum.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/reduce_tile.cuh"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

constexpr int kFoldSums = 4;     ///< of a thread
constexpr int kCodesAtOnce = 4;  ///< ranks whose codes are read before the first is added

struct ShortFoldTile {
  float values[256];  ///< of codes of 4 and 8 bits
  ReduceTile tile;
};

/// Returns the plan of the sums that a call computes: over the ranks of group call.unit or, if
/// call.unit is -1, over all ranks.
CPD_FN const SumPlan& sums_of(const ReduceCall& call) {
  return call.unit >= 0 ? call.group : call.across;
}
CPD_FN std::int64_t terms_of(const ReduceCall& call) {
  return call.unit >= 0 ? call.from_count : call.rounds.units;
}

// --- codes ---------------------------------------------------------------------------------------

/// Memory for four neighboring codes of kBits bits each. FourWords<8> also holds codes of 4 bits.
template <int kBits>
struct FourWords {
  std::uint32_t words[kBits / 8];
};

/// Reads the codes of a message from value `at` on. `at` must be a multiple of 4.
template <int kBits>
CPD_FN FourWords<kBits> words_at(const std::uint8_t* from, std::int64_t at, int bits) {
  const std::uint8_t* place = from + at * bits / 8;
  if (kBits == 8 && bits == 4) return {{*reinterpret_cast<const std::uint16_t*>(place)}};
  FourWords<kBits> codes;
  CPD_IN_REGISTERS for (int w = 0; w < kBits / 8; ++w) {
    codes.words[w] = reinterpret_cast<const std::uint32_t*>(place)[w];
  }
  return codes;
}
/// Returns whether words_at may read the codes of a segment (a range of a layer's values) in every
/// message: the codes must be aligned to words.
CPD_FN bool has_words(const ReduceCall& call, const ReduceSegment& segment) {
  const auto kind = static_cast<int>(Codes::wire);
  const int bytes = call.codes[kind].bits == 4 ? 2 : 4;
  bool all = true;
  CPD_ROLLED for (std::int64_t r = 0; r < terms_of(call); ++r) {
    const auto address = reinterpret_cast<std::uintptr_t>(call.from[r] + segment.start[kind]);
    all = all && address % bytes == 0;
  }
  return all;
}

/// Returns the value of code j. `values` is a table of the values of codes of at most 8 bits. If
/// the code is a NaN, any NaN may be returned.
template <int kBits>
CPD_FN float term_at(const FourWords<kBits>& codes, int j, const RoundPlan& wire,
                     const float* values) {
  if constexpr (kBits == 8) {
    return values[codes.words[0] >> (wire.bits * j) & ((1U << wire.bits) - 1)];
  } else if constexpr (kBits == 32) {
    return bits_as<float>(codes.words[j]);
  } else {
    const std::uint32_t code = codes.words[j / 2] >> (16 * (j % 2)) & 0xFFFF;
    if (wire.form == Form::in_place) return bits_as<float>(code << 16);
    return value_of_code<Rule<Rounding::nearest_even, Form::simple>, float>(code, wire);
  }
}

// --- sums ----------------------------------------------------------------------------------------

/// The sums of four neighboring values. is_good[j] is false if the fast path may have computed sum
/// j wrongly.
struct FourSums {
  float sum[kFoldSums];
  bool is_good[kFoldSums];
};

/// Returns a sum after its first term, like first_sum but without a rounding. The term must be a
/// number of the accumulator's format.
CPD_FN float first_sum_of_known(const SumPlan& plan, float term) {
  return plan.terms.round.keeps_negative_zero ? term : term + 0.0F;
}

/// Returns the sums over ranks of values `at` … `at` + 3 of a segment (a range of a layer's
/// values).
template <class Path, bool kKahan, int kBits>
CPD_FN FourSums add_words(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at,
                          const float* values) {
  constexpr bool kAny = TermSteps<Path, float>::kAnyTerms;
  using Steps = FastSums<Path, float>;
  const SumPlan& plan = sums_of(call);
  const RoundPlan& wire = call.codes[static_cast<int>(Codes::wire)];
  const std::int64_t start = segment.start[static_cast<int>(Codes::wire)];
  const auto read = [&](std::int64_t r) {
    return words_at<kBits>(call.from[r] + start, at, wire.bits);
  };
  Steps steps[kFoldSums] = {Steps(plan.terms), Steps(plan.terms), Steps(plan.terms),
                            Steps(plan.terms)};
  FourSums sums;
  float compensation[kFoldSums] = {};
  const FourWords<kBits> first = read(0);
  CPD_IN_REGISTERS for (int j = 0; j < kFoldSums; ++j) {
    const float term = term_at(first, j, wire, values);
    sums.sum[j] =
        kAny ? first_sum<Rounding::nearest_even>(plan, term) : first_sum_of_known(plan, term);
  }
  const auto add = [&](const FourWords<kBits>& codes) {
    CPD_IN_REGISTERS for (int j = 0; j < kFoldSums; ++j) {
      const float term = term_at(codes, j, wire, values);
      if constexpr (kKahan) {
        steps[j].add(term, sums.sum[j], compensation[j]);
      } else {
        steps[j].add(term, sums.sum[j]);
      }
    }
  };
  std::int64_t r = 1;
  CPD_ROLLED for (; r + kCodesAtOnce <= terms_of(call); r += kCodesAtOnce) {
    FourWords<kBits> some[kCodesAtOnce];
    CPD_IN_REGISTERS for (int k = 0; k < kCodesAtOnce; ++k) some[k] = read(r + k);
    CPD_IN_REGISTERS for (int k = 0; k < kCodesAtOnce; ++k) add(some[k]);
  }
  CPD_ROLLED for (; r < terms_of(call); ++r) add(read(r));
  CPD_IN_REGISTERS for (int j = 0; j < kFoldSums; ++j) {
    sums.is_good[j] = steps[j].is_good() && sums.sum[j] - sums.sum[j] == 0;
  }
  return sums;
}

/// Returns the code of the sum over ranks of value number `at`, computed by sum_of.
template <Rounding mode>
CPD_CALL std::uint32_t code_alone(const ReduceCall& call, const ReduceSegment& segment,
                                  std::int64_t at) {
  return code_of(sum_of<mode>(call, segment, at), call.codes[static_cast<int>(call.to_codes)]);
}
/// Stores the codes of the sums over ranks of values `at` … `at` + 3 in `codes`. If is_good is
/// false for one of `sums`, computes this sum again by sum_of.
template <Rounding mode>
CPD_CALL void code_words(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at,
                         FourSums sums, std::uint32_t* codes) {
  const RoundPlan& plan = call.codes[static_cast<int>(call.to_codes)];
  with_form<mode>(plan.form, [&]<class R>() {
    for (int j = 0; j < kFoldSums; ++j) {
      if (!sums.is_good[j]) {
        codes[j] = code_alone<mode>(call, segment, at + j);
        continue;
      }
      float result = sums.sum[j];
      if (sums_of(call).rounds) result = last_sum<mode>(sums_of(call), result);
      codes[j] = round_to_whole_code<R>(result, 0U, plan);
    }
  });
}

/// Calls run.operator()<kBits>() with the template argument of words_at for codes of `bits` bits.
template <class Run>
CPD_FN void with_code_bits(int bits, Run run) {
  if (bits <= 8) return run.template operator()<8>();
  if (bits == 16) return run.template operator()<16>();
  run.template operator()<32>();
}

// --- the kernel ----------------------------------------------------------------------------------

template <class Path, bool kKahan>
__global__ void __launch_bounds__(kThreads, 4) short_fold(const __grid_constant__ ReduceCall call) {
  __shared__ ShortFoldTile memory;
  const ThreadBlock block;
  constexpr auto kMode = Rounding::nearest_even;
  const RoundPlan& wire = call.codes[static_cast<int>(Codes::wire)];
  std::uint32_t* const codes = memory.tile.codes[0];
  float* const values = memory.values;
  block.each([&](int thread) {
    const auto code = static_cast<std::uint32_t>(thread);
    if (wire.bits <= 8 && thread < 1 << wire.bits) values[thread] = value_of(code, wire);
  });
  for_tiles(block, call, [&](const ReduceSegment& segment, std::int64_t begin, int count) {
    block.each([&](int thread) {
      const int fours = has_words(call, segment) ? count / kFoldSums : 0;
      with_code_bits(wire.bits, [&]<int kBits>() {
        CPD_ROLLED for (int q = thread; q < fours; q += kThreads) {
          const std::int64_t at = begin + kFoldSums * q;
          const FourSums sums = add_words<Path, kKahan, kBits>(call, segment, at, values);
          code_words<kMode>(call, segment, at, sums, codes + kFoldSums * q);
        }
      });
      CPD_ROLLED for (int i = fours * kFoldSums + thread; i < count; i += kThreads) {
        codes[i] = code_alone<kMode>(call, segment, begin + i);
      }
    });
    store_tile(block, call, segment, begin, count, call.to_codes, codes, memory.tile.bytes);
  });
}

/// Returns whether this kernel supports a format's codes. Codes of 4 or 8 bits are decoded by a
/// table of their values, other codes of 16 or 32 bits by a shift or a few operations.
bool has_short_codes(const RoundPlan& plan) {
  if (plan.bits == 4 || plan.bits == 8) return true;
  const bool in_place = plan.form == Form::in_place && (plan.bits == 16 || plan.bits == 32);
  return !plan.wide && (in_place || (plan.bits == 16 && is_simple(plan.form)));
}

bool short_fold_applies(const ReduceCall& call) {
  const SumPlan& sums = sums_of(call);
  const Scheme scheme = sums.order.scheme;
  const bool in_turn =
      call.unit >= 0 || (call.group_size == 0 && call.rounds.order == Order::sequential);
  return call.task == ReduceTask::fold && in_turn &&
         (scheme == Scheme::sequential || scheme == Scheme::kahan) &&
         with_fast_sums(sums.terms.path, []<class /*Path*/>() {}) &&
         has_short_codes(call.codes[static_cast<int>(Codes::wire)]) &&
         !call.codes[static_cast<int>(call.to_codes)].wide;
}
int start_short_fold(const Launch& launch, const ReduceCall& call) {
  const SumPlan& sums = sums_of(call);
  with_fast_sums(sums.terms.path, [&]<class Path>() {
    start_kernel(
        sums.order.scheme == Scheme::kahan ? short_fold<Path, true> : short_fold<Path, false>,
        blocks_for(call.tiles), kThreads, static_cast<cudaStream_t>(launch.stream), call);
  });
  return cudaGetLastError();
}
const FastKernel<reduce> kShortFold(FastPath::short_fold, short_fold_applies, start_short_fold);

}  // namespace
}  // namespace cpd::cuda
