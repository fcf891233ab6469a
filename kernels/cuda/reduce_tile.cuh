// SPDX-License-Identifier: Apache-2.0
//
// Functions that the GPU kernels of reductions over ranks and of messages share. A thread block
// processes a segment (a range of a layer's values) tile by tile. Each thread computes the codes of
// some values, and then the tile is packed.
#pragma once

#include "cpd/backend/message_calls.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/draws/streams.h"
#include "cpd/numeric/lanes/crc.h"
#include "cpd/numeric/round/round_plan.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/fold_tile.h"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {

struct ReduceTile {
  std::uint32_t codes[2][kCodeTile];
  alignas(16) std::uint8_t bytes[4 * kCodeTile];
};

// --- values and codes ----------------------------------------------------------------------------

/// Returns code number i of packed codes.
CPD_FN std::uint32_t code_at(const std::uint8_t* packed, std::int64_t i, int bits) {
  const auto address = reinterpret_cast<std::uintptr_t>(packed);
  if (bits == 8) return packed[i];
  if (bits == 16 && address % 2 == 0) return reinterpret_cast<const std::uint16_t*>(packed)[i];
  if (bits == 32 && address % 4 == 0) return reinterpret_cast<const std::uint32_t*>(packed)[i];
  const std::int64_t first = i * bits;
  const std::uint8_t* byte = packed + first / 8;
  const int skip = static_cast<int>(first % 8);
  std::uint64_t word = 0;
  for (int got = 0; got < skip + bits; got += 8) word |= std::uint64_t{*byte++} << got;
  return static_cast<std::uint32_t>((word >> skip) & ((std::uint64_t{1} << bits) - 1));
}

CPD_FN float value_of(std::uint32_t code, const RoundPlan& plan) {
  if (plan.wide) return convert_value<float>(value_of_code<double>(std::uint64_t{code}, plan));
  return value_of_code<float>(code, plan);
}
/// Returns the code of a value that the format represents exactly. The result is unspecified for a
/// NaN if the format has no code for NaN.
CPD_FN std::uint32_t code_of(float value, const RoundPlan& plan) {
  if (plan.wide) {
    return static_cast<std::uint32_t>(round_to_whole_code<Rounding::nearest_even>(
        static_cast<double>(value), std::uint64_t{0}, plan));
  }
  return round_to_whole_code<Rounding::nearest_even>(value, 0U, plan);
}

/// Returns the random integer of element i in an element-wise operation; 0 unless rounding is
/// stochastic.
template <Rounding mode>
CPD_FN std::uint32_t element_draw(const RoundPlan& plan, std::uint64_t stream, std::int64_t i) {
  if constexpr (mode == Rounding::stochastic) {
    return random_integer(plan.random_bits, plan.seed, stream, static_cast<std::uint64_t>(i));
  } else {
    return 0;
  }
}

/// Returns whether cast_shifted computes x * 2^shift in binary32 and rounds it there.
CPD_FN bool casts_in_binary32(const RoundPlan& plan, int shift) {
  return shift == 0 ? !plan.wide : plan.scale_in_binary32 && shift >= -126 && shift <= 127;
}
/// Returns x * 2^shift, computed in binary32. `shift` must be 0 or from -126 to 127.
CPD_FN float shifted_in_binary32(float x, int shift) {
  return shift == 0 ? x : x * bits_as<float>(static_cast<std::uint32_t>(shift + 127) << 23);
}
/// Returns x * 2^shift, rounded once into the plan's format.
template <Rounding mode>
CPD_FN float cast_shifted(float x, int shift, std::uint32_t random, const RoundPlan& plan) {
  if (casts_in_binary32(plan, shift)) {
    return round<mode>(shifted_in_binary32(x, shift), random, plan);
  }
  const double scaled = static_cast<double>(x) * exact_power(shift);
  return convert_value<float>(round<mode>(scaled, std::uint64_t{random}, plan));
}

// --- one value -----------------------------------------------------------------------------------

/// Decodes and returns value number `at` of a segment (a range of a layer's values) from message
/// number `which` of the call.
CPD_FN float load_value(const ReduceCall& call, const ReduceSegment& segment, std::int64_t which,
                        Codes codes, std::int64_t at) {
  const auto c = static_cast<int>(codes);
  const RoundPlan& plan = call.codes[c];
  return value_of(code_at(call.from[which] + segment.start[c], at, plan.bits), plan);
}

/// Returns an object that continues the sum of element i with term k, with random integers of
/// `stream`. For k > 0, the caller must set the object's planes (the sum's running values) to their
/// values after k terms.
template <Rounding mode>
CPD_FN ElementSum<mode, float> sum_from(const SumPlan& plan, std::uint64_t stream, std::int64_t i,
                                        std::int64_t k) {
  return {plan, plan.terms.round.seed, stream, i, k};
}
template <Rounding mode>
CPD_FN float rounded_result(float sum, const SumPlan& plan, std::uint64_t stream, std::int64_t i) {
  return cast_shifted<mode>(sum, 0, element_draw<mode>(plan.result, stream, i), plan.result);
}
/// Ends the sum of element i and returns it, rounded into the result's format. Stochastic rounding
/// uses the random integer of element i of `stream`.
template <Rounding mode>
CPD_FN float result_of_sum(ElementSum<mode, float>& sum, const SumPlan& plan, std::uint64_t stream,
                           std::int64_t i) {
  const float whole = sum.end();
  return plan.rounds ? rounded_result<mode>(whole, plan, stream, i) : whole;
}

/// Returns a sum's first term, rounded into the accumulator's format without random bits.
template <Rounding mode>
CPD_CALL float first_sum(const SumPlan& plan, float term) {
  auto sum = sum_from<mode>(plan, 0, 0, 0);
  sum.take(term);
  return sum.sum();
}
/// Returns a sum after its last term, rounded into the result's format without random bits.
template <Rounding mode>
CPD_CALL float last_sum(const SumPlan& plan, float sum) {
  return rounded_result<mode>(sum, plan, 0, 0);
}

template <Rounding mode>
CPD_FN float contribution(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at) {
  const std::int64_t i = segment.begin + at;
  const std::uint64_t stream = StreamFrom(call.cast_stream, segment.layer, 0);
  return cast_shifted<mode>(segment.x[at], segment.shift, element_draw<mode>(call.cast, stream, i),
                            call.cast);
}

/// Returns the code that this rank sends for value number `at` of a segment (a range of a layer's
/// values): the value, cast by call.cast and encoded. If the codes have the format of the cast,
/// there is one rounding.
template <Rounding mode>
CPD_FN std::uint32_t contribution_code(const ReduceCall& call, const ReduceSegment& segment,
                                       std::int64_t at) {
  const RoundPlan& plan = call.codes[static_cast<int>(call.to_codes)];
  const bool is_cast = plan.bits == call.cast.bits && plan.has_nan == call.cast.has_nan;
  if (!is_cast || !casts_in_binary32(call.cast, segment.shift)) {
    return code_of(contribution<mode>(call, segment, at), plan);
  }
  const std::uint64_t stream = StreamFrom(call.cast_stream, segment.layer, 0);
  return round_to_whole_code<mode>(shifted_in_binary32(segment.x[at], segment.shift),
                                   element_draw<mode>(call.cast, stream, segment.begin + at),
                                   call.cast);
}

/// Returns the sum of value number `at` over a group of `members` ranks. The messages of these
/// ranks are call.from[first], call.from[first + 1], ….
template <Rounding mode>
CPD_CALL float group_sum(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at,
                         std::int64_t unit, std::int64_t first, std::int64_t members) {
  const std::int64_t i = segment.begin + at;
  auto sum = sum_from<mode>(call.group, StreamFrom(call.sum_stream, segment.layer, unit), i, 0);
  take_all(sum, members, [&](std::int64_t m, int count, float* some) {
    CPD_ROLLED for (int j = 0; j < count; ++j) {
      some[j] = load_value(call, segment, first + m + j, Codes::wire, at);
    }
  });
  return result_of_sum(sum, call.group, StreamFrom(call.result_stream, segment.layer, unit), i);
}

template <Rounding mode>
CPD_FN float sum_of(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at) {
  if (call.unit >= 0) {
    return group_sum<mode>(call, segment, at, call.unit, 0, call.from_count);
  }
  const std::int64_t i = segment.begin + at;
  const Rounds& rounds = call.rounds;
  const bool ring = rounds.order == Order::ring;
  std::int64_t unit = rounds.unit_of_term(0, ring ? rounds.slice_of(segment.size, i) : 0);
  auto sum = sum_from<mode>(call.across, StreamFrom(call.sum_stream, segment.layer, kAcross), i, 0);
  const auto next = [&] {
    const std::int64_t own = unit;
    if (++unit == rounds.units) unit = 0;
    if (call.group_size == 0) return load_value(call, segment, own, Codes::wire, at);
    const std::int64_t first = own * call.group_size;
    const std::int64_t left = call.world - first;
    const std::int64_t members = left < call.group_size ? left : call.group_size;
    return group_sum<mode>(call, segment, at, own, first, members);
  };
  take_all(sum, rounds.units, [&](std::int64_t, int count, float* some) {
    CPD_ROLLED for (int j = 0; j < count; ++j) some[j] = next();
  });
  return result_of_sum(sum, call.across, StreamFrom(call.result_stream, segment.layer, kAcross), i);
}

/// Adds term k to the running sum of value number `at`. Afterwards, `first` has the code of the sum
/// and `second` the code of the sum's second value, such as Kahan's compensation. After the last
/// term, `first` has the code of the result.
template <Rounding mode>
CPD_FN void hop_over(const ReduceCall& call, const ReduceSegment& segment, std::int64_t at,
                     std::uint32_t& first, std::uint32_t& second) {
  const std::int64_t i = segment.begin + at;
  const SumPlan& plan = call.across;
  const bool two_planes = planes_of_sum(plan.order.scheme, call.rounds.units) > 1;
  auto sum = sum_from<mode>(plan, StreamFrom(call.sum_stream, segment.layer, kAcross), i, call.k);
  if (call.k > 0) {
    sum.sum() = load_value(call, segment, 0, Codes::plane0, at);
    if (two_planes) sum.second() = load_value(call, segment, 0, Codes::plane1, at);
  }
  sum.take(load_value(call, segment, 1, call.from_codes, at));
  if (call.k + 1 < call.rounds.units) {
    first = code_of(sum.sum(), call.codes[static_cast<int>(Codes::plane0)]);
    if (two_planes) {
      second = code_of(sum.second(), call.codes[static_cast<int>(Codes::plane1)]);
    }
    return;
  }
  const std::uint64_t stream = StreamFrom(call.result_stream, segment.layer, kAcross);
  first = code_of(result_of_sum(sum, plan, stream, i), call.codes[static_cast<int>(Codes::result)]);
}

/// Returns (value * 2^-shift) / divisor, with each operation rounded once to binary32.
CPD_FN float unscaled(float value, int shift, float divisor) {
  const bool is_short = shift >= -127 && shift <= 126;
  const float scaled = is_short
                           ? shifted_in_binary32(value, -shift)
                           : static_cast<float>(static_cast<double>(value) * exact_power(-shift));
  const float result = divisor == 1 ? scaled : scaled / divisor;
  return result == result ? result : bits_as<float>(Pattern<float>::quiet_nan);
}

// --- blocks --------------------------------------------------------------------------------------

/// Returns the segment (a range of a layer's values) to which a tile belongs.
CPD_FN const ReduceSegment& segment_of(const ReduceCall& call, std::int64_t tile) {
  int low = 0;
  for (int high = call.segment_count - 1; low < high;) {
    const int middle = high - (high - low) / 2;
    if (call.segments[middle].tile <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return call.segments[low];
}

/// Calls run(segment, begin, count) for each tile of values that this thread block processes. The
/// tile has values begin … begin + count - 1 of the segment (a range of a layer's values).
template <class Run>
CPD_DEVICE void for_tiles(const ThreadBlock& block, const ReduceCall& call, Run run) {
  CPD_ROLLED for (std::int64_t tile = block.number; tile < call.tiles; tile += block.count) {
    const ReduceSegment& segment = segment_of(call, tile);
    const std::int64_t begin = (tile - segment.tile) * kCodeTile;
    run(segment, begin, tile_count(begin, segment.count));
  }
}

/// Packs the codes of a tile and copies them to the message, to the position of value `begin` of
/// the segment (a range of a layer's values).
CPD_DEVICE void store_tile(const ThreadBlock& block, const ReduceCall& call,
                           const ReduceSegment& segment, std::int64_t begin, int count, Codes kind,
                           const std::uint32_t* codes, std::uint8_t* bytes) {
  const auto c = static_cast<int>(kind);
  const int bits = call.codes[c].bits;
  std::uint8_t* to = call.to + segment.start[c] + begin / 8 * bits;
  block.each([&](int thread) { pack_tile(codes, count, bits, bytes, thread); });
  block.each([&](int thread) { copy_bytes(to, bytes, byte_count(count, bits), thread); });
}

/// Encodes the tiles that this thread block processes, and stores the packed codes in the message
/// call.to. code(segment, at) must return the code of value number `at` of a segment (a range of a
/// layer's values).
template <class Code>
CPD_DEVICE void code_block(const ThreadBlock& block, const ReduceCall& call, ReduceTile& tile,
                           Code code) {
  for_tiles(block, call, [&](const ReduceSegment& segment, std::int64_t begin, int count) {
    block.each([&](int thread) {
      CPD_ROLLED for (int i = thread; i < count; i += kThreads) {
        tile.codes[0][i] = code(segment, begin + i);
      }
    });
    store_tile(block, call, segment, begin, count, call.to_codes, tile.codes[0], tile.bytes);
  });
}

// --- whole layers
// ---------------------------------------------------------------------------------

/// Divides n values into tiles, and calls run(begin, count) for each tile that this thread block
/// processes. The tile has values begin … begin + count - 1.
template <class Run>
CPD_DEVICE void for_tiles_of(const ThreadBlock& block, std::int64_t n, Run run) {
  CPD_ROLLED for (std::int64_t tile = block.number; tile < tiles_of(n); tile += block.count) {
    run(tile * kCodeTile, tile_count(tile * kCodeTile, n));
  }
}

/// A thread's counts of values that are not finite, that a cast rounds to zero, and that are zero
/// after the cast.
struct LossCounts {
  std::uint32_t non_finite = 0, underflowed = 0, zeros = 0;

  CPD_FN void take(float x, float term) {
    const std::uint32_t size = bits_as<std::uint32_t>(x) & Pattern<float>::magnitude;
    if (size >= Pattern<float>::infinity) ++non_finite;
    if (term == 0) ++zeros;
    if (term == 0 && size != 0) ++underflowed;
  }
  CPD_DEVICE void add_to(const ThreadBlock& block, SegmentCounts& counts) const {
    block.add(&counts.non_finite, non_finite);
    block.add(&counts.underflowed, underflowed);
    block.add(&counts.zeros, zeros);
  }
};

// --- checksums -----------------------------------------------------------------------------------

constexpr int kCrcPiece = 512;  ///< bytes that a thread handles at a time

/// Powers for CRC: of_two[k] = x^(8 * 2^k). A remainder times this power is the remainder after 2^k
/// more zero bytes.
struct CrcPowers {
  std::uint32_t of_two[40];
};
constexpr CrcPowers make_crc_powers() {
  CrcPowers powers{};
  std::uint32_t square = 1U << 23;
  for (std::uint32_t& power : powers.of_two) {
    power = square;
    square = crc_multiply(square, square);
  }
  return powers;
}
constexpr CrcPowers kCrcPowers = make_crc_powers();

CPD_FN std::uint32_t after_zeros(std::uint32_t remainder, std::int64_t n, const CrcPowers& powers) {
  for (int k = 0; n > 0; n >>= 1, ++k) {
    if (n % 2 != 0) remainder = crc_multiply(remainder, powers.of_two[k]);
  }
  return remainder;
}

}  // namespace cpd::cuda
