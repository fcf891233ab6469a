// SPDX-License-Identifier: Apache-2.0
//
// Computes the tiles of gemm_registers.h in pairs of 16-bit lanes (halves.h), if the plan finds
// that such lanes give the exact result of each step (FastPlan::half). Contains the work of each
// CUDA thread between the barriers of its thread block.
//
// A thread block computes 128 x 128 sums, in four quarters of 64 x 64. A thread has 4 x 4 sums of
// each quarter, in pairs of columns. 32 values of k at a time are copied to shared memory as 16-bit
// codes, if all of them have so few bits that the lanes represent their products exactly. Otherwise
// the quarters are computed one after the other in binary32. Sums that might overflow take the
// general path.
//
// Instructions of a product and its sum, counted as in gemm_registers.h:
//   fp16     3.7
//   bf16     3.7
// 3.5 of the 3.7 instructions are arithmetic: 7 for a pair. One of the 7 is a maximum, which runs
// at half the rate of the others.
#pragma once

#include <type_traits>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/gemm_registers.h"
#include "kernels/cuda/halves.h"

namespace cpd::cuda {

constexpr int kQuarters = 4;
constexpr int kHalvesSide = 2 * kWide;
constexpr int kPatches = kWide / kPatch;

/// The type of a pair of lanes: bf16 or fp16.
template <Half kHalf>
using PairOf = HalfPair<std::conditional_t<kHalf == Half::bf16, __nv_bfloat162, __half2>>;
constexpr DType type_of(Half half) { return half == Half::bf16 ? DType::bf16 : DType::f16; }

/// has(x) returns whether 16-bit lanes may multiply operand x. The products of all such operands
/// have at least one significant bit less than the lanes, as split_short requires.
template <Half kHalf>
struct HeldOperands {
  static constexpr Format kFormat = format_of(kHalf);
  static constexpr int kBits = (kFormat.precision() - 1) / 2;
  static constexpr std::uint32_t kDropped = Pattern<float>::fraction >> (kBits - 1);
  static constexpr std::uint32_t kFraction = Pattern<float>::fraction & ~kDropped;
  static constexpr int kLeast = kFormat.min_quantum_exponent() + kBits - 1;

  CPD_FN static bool has(float x) {
    constexpr auto kFrom = bits_as<std::uint32_t>(
        static_cast<float>(Format::power_of_two(kLeast < -126 ? -126 : kLeast)));
    constexpr auto kTo = bits_as<std::uint32_t>(static_cast<float>(kFormat.max()));
    const std::uint32_t a = bits_as<std::uint32_t>(x) & Pattern<float>::magnitude;
    return (a & kDropped) == 0 && (a == 0 || a - kFrom <= kTo - kFrom);
  }
};

/// The codes of a's rows or b's columns (lines) that one thread needs at one k: kPatch lines in the
/// first half of the tile and kPatch lines in the second half. pairs[i] holds the codes of two
/// neighboring lines.
union alignas(16) HalfCodes {
  std::uint16_t codes[2 * kPatch];
  std::uint32_t pairs[kPatch];
};

/// The values of one operand in shared memory. Also has the largest magnitude of the lines (rows of
/// a or columns of b) of each thread, for each group of kGroup successive k.
struct HalfOperand {
  HalfCodes values[kWideDepth][kPatches + 1];
  float largest[kWideDepth / kGroup][kPatches];

  CPD_FN void put(int k, int line, std::uint16_t code) {
    const int patch = line % kWide / kPatch;
    values[k][patch].codes[line / kWide * kPatch + line % kPatch] = code;
  }
};
struct HalvesMemory {
  HalfOperand a, b;
};
union HalvesOrWide {
  HalvesMemory halves;
  WideMemory wide;
};

/// PatchOperands of codes.
template <Half kHalf>
struct HalfLines {
  const HalfCodes* a_values;
  const HalfCodes* b_values;
  int row, column;

  CPD_FN float a(std::int64_t k) const { return value(a_values, k, row); }
  CPD_FN float b(std::int64_t k) const { return value(b_values, k, column); }

 private:
  CPD_FN static float value(const HalfCodes* values, std::int64_t k, int line) {
    return widen_code<type_of(kHalf)>(values[k * (kPatches + 1)].codes[line]);
  }
};

/// Returns the position of one quarter of a tile of kHalvesSide x kHalvesSide sums.
CPD_FN TilePlace quarter_of(TilePlace tile, int quarter) {
  tile.row += quarter / 2 * kWide;
  tile.column += quarter % 2 * kWide;
  return tile;
}

/// Computes 8 x 8 sums in a thread, in pairs of 16-bit lanes.
template <Half kHalf>
class HalvesThread {
 public:
  CPD_FN HalvesThread(const GemmCall& call, const TilePlace& place, int thread, PatchSums* sums)
      : call_(call),
        sums_(sums),
        thread_(thread),
        place_(place),
        product_(call.plan.sum.fast.man_product, call.plan.sum.fast.product_quantum, false),
        sum_(call.plan.sum.fast.man_sum, call.plan.sum.fast.sum_quantum, false) {}

  /// write_sums copies the sums from registers to memory; read_sums copies the sums from memory to
  /// registers.
  CPD_FN void write_sums() const {
    for (int i = 0; i < 2 * kPatch; ++i) {
      for (int j = 0; j < kPatch; ++j) {
        const auto codes = reinterpret_cast<const std::uint32_t&>(s_[i][j]);
        float* const at = pair_in_memory(i, j);
        at[0] = widen_code<kType>(static_cast<std::uint16_t>(codes));
        at[1] = widen_code<kType>(static_cast<std::uint16_t>(codes >> 16));
      }
    }
  }
  CPD_FN void read_sums() {
    ordinary_ = true;
    for (int i = 0; i < 2 * kPatch; ++i) {
      for (int j = 0; j < kPatch; ++j) {
        const float* const at = pair_in_memory(i, j);
        const std::uint32_t codes = two_codes<kType, Stored::held>(at[0], at[1]);
        ordinary_ = ordinary_ && (codes & 0xFFFF) != 0x8000 && codes >> 16 != 0x8000;
        s_[i][j] = pair_of(codes);
      }
    }
  }

  /// Copies both operands' values at k … k + count - 1 to shared memory. Returns false if 16-bit
  /// lanes may not multiply one of the values (HeldOperands::has).
  CPD_FN bool load(HalvesMemory& memory, std::int64_t k, int count) const {
    bool held = true;
    const auto take = [&held](HalfOperand& to) {
      return [&held, &to](int at, int line, float x) {
        held = held && HeldOperands<kHalf>::has(x);
        to.put(at, line, code_of<kType, Stored::held>(x));
      };
    };
    load_operands<kHalvesSide>(call_.product, place_, k, count, thread_, take(memory.a),
                               take(memory.b));
    return held;
  }
  /// Finds the largest magnitude of 2 * kPatch lines (rows of a or columns of b) in one group of
  /// kGroup successive k. All threads together do so for all groups of both operands.
  CPD_FN void bound(HalvesMemory& memory) const {
    constexpr int kEntries = kWideDepth / kGroup * kPatches;
    static_assert(2 * kEntries == kWideThreads);
    HalfOperand& x = thread_ < kEntries ? memory.a : memory.b;
    const int group = thread_ % kEntries / kPatches;
    const int patch = thread_ % kPatches;
    Pair most{};
    for (int k = group * kGroup; k < (group + 1) * kGroup; ++k) {
      const HalfCodes values = x.values[k][patch];
      for (const std::uint32_t pair : values.pairs) most = larger_magnitude(most, pair_of(pair));
    }
    x.largest[group][patch] = larger_lane(most);
  }
  CPD_FN void add(const HalvesMemory& memory, std::int64_t k, int count, ChunkCount& chunk) {
    for (int i = 0; i < count; i += kGroup) {
      const int length = count - i < kGroup ? count - i : kGroup;
      const bool fits = stays_below_limit(memory, i);
      if (fits) add_group(memory, i);
      const bool ends = chunk.ends(call_, length, k + i + length);
      if (fits && !ends) continue;
      write_sums();
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        if (!fits) carefully(memory, i, length, quarter);
        if (ends) end_chunk(call_.plan, sums_[quarter]);
      }
      read_sums();
    }
  }

 private:
  using Pair = PairOf<kHalf>;
  static constexpr DType kType = type_of(kHalf);

  CPD_FN static Pair pair_of(std::uint32_t codes) { return reinterpret_cast<const Pair&>(codes); }
  CPD_FN static float larger_lane(Pair x) {
    const auto codes = reinterpret_cast<const std::uint32_t&>(x);
    const float first = widen_code<kType>(static_cast<std::uint16_t>(codes));
    const float second = widen_code<kType>(static_cast<std::uint16_t>(codes >> 16));
    return first >= second || first != first ? first : second;
  }
  /// Returns the address in memory of the two sums of row i and column pair j.
  CPD_FN float* pair_in_memory(int i, int j) const {
    PatchSums& sums = sums_[i / kPatch * 2 + j / 2];
    return &sums.sum[i % kPatch * kPatch + j % 2 * 2];
  }

  /// Returns whether the fast path is correct for the next kGroup products of each sum, from k on:
  /// no sum can overflow, and no sum is -0.
  CPD_FN bool stays_below_limit(const HalvesMemory& memory, int k) const {
    const FastPlan& fast = call_.plan.sum.fast;
    const float largest_a = memory.a.largest[k / kGroup][thread_ / kPatches];
    const float largest_b = memory.b.largest[k / kGroup][thread_ % kPatches];
    const float products = largest_a * largest_b * float{kGroup};
    const float limit = sum_limit(fast, bound_products(fast, products, kGroup, largest_b));
    return ordinary_ && largest_sum() <= limit;
  }
  /// Returns the largest magnitude of the sums. Returns NaN if a sum is NaN.
  CPD_FN float largest_sum() const {
    Pair most{};
    for (const auto& row : s_) {
      for (const Pair sum : row) most = larger_magnitude(most, sum);
    }
    return larger_lane(most);
  }

  /// Adds the next kGroup products to each sum, from k on. At the end of the matrices, the missing
  /// operands are 0, and their products change no sum.
  CPD_FN void add_group(const HalvesMemory& memory, int k) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int i = 0; i < kGroup; ++i) {
      add_value(memory.a.values[k + i][thread_ / kPatches],
                memory.b.values[k + i][thread_ % kPatches]);
    }
  }
  CPD_FN void add_value(const HalfCodes& a, const HalfCodes& b) {
    for (int j = 0; j < kPatch; ++j) {
      for (int i = 0; i < 2 * kPatch; ++i) {
        const Pair rows = pair_of(a.pairs[i / 2]);
        const Pair row = i % 2 == 0 ? first_twice(rows) : last_twice(rows);
        s_[i][j] = split(s_[i][j] + split_short(row * pair_of(b.pairs[j]), product_), sum_);
      }
    }
  }
  /// Adds the products at k … k + count - 1 to the thread's sums in one quarter of the tile, which
  /// must be in memory. Computes by the general path, in binary32 if possible.
  CPD_FN void carefully(const HalvesMemory& memory, int k, int count, int quarter) const {
    const GemmPlan& plan = call_.plan.sum;
    constexpr std::uint32_t kFraction = HeldOperands<kHalf>::kFraction;
    const HalfLines<kHalf> lines{&memory.a.values[k][thread_ / kPatches],
                                 &memory.b.values[k][thread_ % kPatches], quarter / 2 * kPatch,
                                 quarter % 2 * kPatch};
    add_carefully<Veltkamp, Scheme::sequential>(
        plan, lines, count, fits_binary32(plan, kFraction, kFraction), sums_[quarter]);
  }

  const GemmCall& call_;
  PatchSums* sums_;  ///< of the quarters
  int thread_;
  const TilePlace& place_;
  SplitFormat<Pair> product_, sum_;
  Pair s_[2 * kPatch][kPatch];  ///< the sums, in registers
  bool ordinary_ = true;        ///< no sum is -0
};

/// Returns whether this path computes a product instead of gemm_registers.h. The plan must allow
/// 16-bit lanes, and tiles of 128 x 128 sums must take less time on `processors` multiprocessors
/// than tiles of 64 x 64 sums. A tile of 128 x 128 sums costs as much as 1.8 tiles of 64 x 64 sums.
inline bool takes_halves(const GemmCall& call, std::int64_t processors) {
  if (call.plan.sum.fast.half == Half::none) return false;
  const auto turns = [&](int side) {
    const std::int64_t tiles = tile_count(call.product, call.product.batch(), side);
    return (tiles + processors - 1) / processors;
  };
  return 9 * turns(kHalvesSide) < 5 * turns(kWide);
}

}  // namespace cpd::cuda
