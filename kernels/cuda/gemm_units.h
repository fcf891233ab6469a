// SPDX-License-Identifier: Apache-2.0
//
// A matrix unit's sums in 32-bit arithmetic on a GPU: the work of each thread between the barriers
// of its thread block. block_fma.h has the path that supports every unit. Compiles for host and
// device.
//
// A thread block computes 64 x 64 sums; each thread has 4 x 4 sums in registers. Up to 32 values of
// k at a time are copied to shared memory, each together with its exponent. A matrix unit's block
// of products takes two loops. The first loop finds the greatest exponents, for two sums in one
// word (exponent_pairs.h). The second loop aligns the products in binary32 and sums them as
// integers. If ShortBlocks does not support one of a thread's sums, the thread ends the block for
// all of its sums in binary64, one after the other.
//
// A product takes 4.5 instructions, and 19.8 in block_fma.h (tests/python/project/test_sass.py).
#pragma once

#include "cpd/numeric/units/exponent_pairs.h"
#include "kernels/cuda/block_fma.h"
#include "kernels/cuda/gemm_registers.h"

namespace cpd::cuda {

/// The exponents of four values of a at one k, which a thread reads with one instruction. Each word
/// holds one exponent twice, so that one operation adds it to the exponents of two values of b.
struct alignas(16) FourExponents {
  std::uint32_t pairs[kPatch];
};
struct alignas(8) TwoExponents {
  std::uint32_t pairs[kPatch / 2];
};

/// A tile's values of a and b in shared memory, with their exponents.
struct UnitMemory {
  static constexpr int kRow = kWide / kPatch + 1;
  Four a[kWideDepth][kRow];
  Four b[kWideDepth][kRow];
  FourExponents a_exponents[kWideDepth][kRow];
  TwoExponents b_exponents[kWideDepth][kRow];

  CPD_FN void put_a(int k, int line, float x, int emin) {
    const int patch = line / kPatch;
    const std::uint32_t e = paired_exponent(x, emin);
    a[k][patch].x[line % kPatch] = x;
    a_exponents[k][patch].pairs[line % kPatch] = e << 16 | e;
  }
  CPD_FN void put_b(int k, int line, float x, int emin) {
    const int patch = line / kPatch;
    b[k][patch].x[line % kPatch] = x;
    auto* const halves = reinterpret_cast<std::uint16_t*>(&b_exponents[k][patch]);
    halves[line % kPatch] = paired_exponent(x, emin);
  }
};

/// Memory for a thread's sums (`state`) and, for each sum, the greatest exponent E of the current
/// block and the block's total, divided by 2^(E - F) (F: plan.fraction_bits). Used by loops that do
/// not fit into registers.
struct UnitPatch {
  UnitState state[kPatch * kPatch];
  std::int32_t e[kPatch * kPatch];
  std::int32_t units[kPatch * kPatch];
};

/// Adds the totals of a block's products (patch.units) to the thread's sums in memory and rounds
/// the sums, in binary64.
CPD_COLD void end_patch(const BlockFmaPlan& plan, UnitPatch& patch) {
  with_sum_rule(plan, [&]<class R>() {
    CPD_ROLLED for (int i = 0; i < kPatch * kPatch; ++i) {
      float& unit = patch.state[i].unit;
      unit = static_cast<float>(end_block<R>(static_cast<double>(patch.units[i]),
                                             static_cast<double>(unit), std::int64_t{patch.e[i]},
                                             plan));
    }
  });
}

/// Adds the `count` products of a block to each of the thread's sums in memory. Computes the whole
/// block in binary64.
CPD_COLD void add_patch(const BlockFmaPlan& plan, PatchOperands x, int count, UnitPatch& patch) {
  CPD_ROLLED for (int i = 0; i < kPatch * kPatch; ++i) {
    float& unit = patch.state[i].unit;
    x.row = i / kPatch;
    x.column = i % kPatch;
    const std::int32_t e = greatest_exponent(plan, x, count, unit);
    const double units = sum_of_units<double>(plan, x, count, e);
    with_unit_rule(plan, [&]<class R>() {
      unit =
          static_cast<float>(end_block<R>(units, static_cast<double>(unit), std::int64_t{e}, plan));
    });
  }
}

/// Computes 4 x 4 sums in a thread. kShort: 32-bit arithmetic also adds a block's total to the sum
/// and rounds the result; otherwise binary64 does so.
template <bool kShort>
class UnitThread {
 public:
  CPD_FN UnitThread(const GemmCall& call, const TilePlace& place, int thread, UnitPatch& patch)
      : call_(call),
        patch_(patch),
        place_{call.product, place, thread},
        left_(call.plan.unit.promote) {}

  /// Sets the sums to their initial values.
  CPD_FN void begin() {
    with_mode(call_.plan.unit.promoted.mode, [&]<Rounding mode>() {
      CPD_ROLLED for (int i = 0; i < kPatch * kPatch; ++i) {
        patch_.state[i] = begin_unit<mode>(call_, key_of(i), place_.addend(i));
      }
    });
    read_units();
  }

  CPD_FN void load(UnitMemory& memory, std::int64_t k, int count) const {
    const BlockFmaPlan& plan = call_.plan.unit;
    load_operands<kWide>(
        call_.product, place_.tile, k, count, place_.thread,
        [&](int at, int line, float x) { memory.put_a(place_of(at), line, x, plan.emin_a); },
        [&](int at, int line, float x) { memory.put_b(place_of(at), line, x, plan.emin_b); });
  }

  /// Adds the products at k … k + count - 1, whose factors are in shared memory, to each sum.
  CPD_FN void add(const UnitMemory& memory, std::int64_t k, int count) {
    const BlockFmaPlan& plan = call_.plan.unit;
    // The last group or block may extend beyond the matrices. load_operands has stored +0 for the
    // operands that do not exist.
    const int whole = plan.group > 0 ? (count + plan.group - 1) / plan.group * plan.group : count;
    for (int at = 0; at < whole; at += plan.block) {
      add_block(memory, at);
      left_ -= plan.block;
      if (plan.promote > 0 && left_ == 0) promote(k + at + plan.block);
    }
  }

  /// Stores the results.
  CPD_FN void store() {
    const std::int64_t promotion = call_.plan.unit.promote;
    if (promotion == 0 || left_ != promotion) promote(call_.product.depth);
    for (int i = 0; i < kPatch * kPatch; ++i) {
      place_.store(i, unit_result(call_, patch_.state[i]));
    }
  }

 private:
  [[nodiscard]] CPD_FN int place_of(int k) const { return place_of_k(call_.plan, k, kWideDepth); }
  /// Returns the key for the random integers of sum i. A sum outside the result, whose value is not
  /// stored, uses the integers of element 0, which always exist.
  [[nodiscard]] CPD_FN RandomKey key_of(int i) const {
    const MatrixProduct& p = call_.product;
    const std::int64_t element = p.first_element +
                                 (place_.tile.batch * p.rows + place_.row_of(i)) * p.columns +
                                 place_.column_of(i);
    return random_key(call_.plan.unit.promoted, call_,
                      static_cast<std::uint64_t>(place_.is_inside(i) ? element : 0));
  }

  /// write_units copies the matrix unit's sums from registers to memory; read_units copies these
  /// sums from memory to registers.
  CPD_FN void write_units() {
    for (int i = 0; i < kPatch * kPatch; ++i) {
      patch_.state[i].unit = unit_[i / kPatch][i % kPatch];
    }
  }
  CPD_FN void read_units() {
    for (int i = 0; i < kPatch * kPatch; ++i) {
      unit_[i / kPatch][i % kPatch] = patch_.state[i].unit;
    }
  }

  /// Adds one block of products to each sum of this thread. The operands of the block begin at
  /// index `at` of k in shared memory.
  CPD_FN void add_block(const UnitMemory& memory, int at) {
    const BlockFmaPlan& plan = call_.plan.unit;
    std::int32_t e[kPatch][kPatch];
    if (!find_exponents(memory, at, e)) {
      write_units();
      add_patch(plan, {&memory.a[at][place_.a_patch()], &memory.b[at][place_.b_patch()], 0, 0},
                plan.block, patch_);
      return read_units();
    }
    std::int32_t units[kPatch][kPatch];
    sum_products(memory, at, e, units);
    if constexpr (kShort) {
      for (int i = 0; i < kPatch; ++i) {
        for (int j = 0; j < kPatch; ++j) {
          unit_[i][j] = end_in_range32(units[i][j], unit_[i][j], e[i][j], plan);
        }
      }
    } else {
      for (int i = 0; i < kPatch * kPatch; ++i) {
        patch_.e[i] = e[i / kPatch][i % kPatch];
        patch_.units[i] = units[i / kPatch][i % kPatch];
      }
      write_units();
      end_patch(plan, patch_);
      read_units();
    }
  }

  /// Calls run(k) for the values of a block in shared memory, from index `at` on.
  template <class Run>
  CPD_FN void for_values(int at, Run run) const {
    CPD_ROLLED for (int k = at; k < at + call_.plan.unit.block; k += kGroup) {
      for (int i = 0; i < kGroup; ++i) run(k + i);
    }
  }

  /// Finds for each sum the greatest exponent E among the products of one block, whose operands
  /// begin at index `at` in shared memory. Returns false if some E is outside the range that 32-bit
  /// arithmetic supports.
  CPD_FN bool find_exponents(const UnitMemory& memory, int at,
                             std::int32_t (&e)[kPatch][kPatch]) const {
    const BlockFmaPlan& plan = call_.plan.unit;
    std::uint32_t most[kPatch][kPatch / 2];
    for (auto& row : most) {
      for (std::uint32_t& pair : row) pair = kNoExponents;
    }
    for_values(at, [&](int k) {
      const FourExponents a = memory.a_exponents[k][place_.a_patch()];
      const TwoExponents b = memory.b_exponents[k][place_.b_patch()];
      for (int i = 0; i < kPatch; ++i) {
        for (int j = 0; j < kPatch / 2; ++j) {
          most[i][j] = larger_of_sum(a.pairs[i], b.pairs[j], most[i][j]);
        }
      }
    });
    ShortBlocks served(plan);
    for (int i = 0; i < kPatch; ++i) {
      for (int j = 0; j < kPatch; ++j) {
        const std::uint32_t pair = most[i][j / 2];
        std::int32_t greatest = j % 2 == 0 ? first_exponent(pair) : second_exponent(pair);
        if (plan.aligns_addend) greatest = max(greatest, exponent_from(unit_[i][j], plan.emin_sum));
        e[i][j] = served.take(greatest);
      }
    }
    return served.all();
  }

  /// Adds up the block's products for each sum, each cut to a multiple of 2^(E - F) (F:
  /// plan.fraction_bits). `units` receives the totals divided by 2^(E - F).
  CPD_FN void sum_products(const UnitMemory& memory, int at,
                           const std::int32_t (&e)[kPatch][kPatch],
                           std::int32_t (&units)[kPatch][kPatch]) const {
    const BlockFmaPlan& plan = call_.plan.unit;
    float scale[kPatch][kPatch];
    for (int i = 0; i < kPatch; ++i) {
      for (int j = 0; j < kPatch; ++j) {
        scale[i][j] = alignment<float>(e[i][j], plan);
        units[i][j] = 0;
      }
    }
    for_values(at, [&](int k) {
      const Four a = memory.a[k][place_.a_patch()];
      const Four b = memory.b[k][place_.b_patch()];
      for (int i = 0; i < kPatch; ++i) {
        for (int j = 0; j < kPatch; ++j) {
          units[i][j] += aligned_product(a.x[i], b.x[j], scale[i][j]);
        }
      }
    });
  }

  /// Adds the matrix unit's sums to the accumulator's sums, or rounds them into the accumulator's
  /// format (promote_unit). `done` is the number of products in each sum so far, which selects the
  /// random integers.
  CPD_FN void promote(std::int64_t done) {
    write_units();
    with_mode(call_.plan.unit.promoted.mode, [&]<Rounding mode>() {
      CPD_ROLLED for (int i = 0; i < kPatch * kPatch; ++i) {
        promote_unit<mode>(call_, key_of(i), 0, done, patch_.state[i]);
      }
    });
    read_units();
    left_ = call_.plan.unit.promote;
  }

  const GemmCall& call_;
  UnitPatch& patch_;
  PatchPlace place_;
  std::int64_t left_;           ///< products until the next promotion
  float unit_[kPatch][kPatch];  ///< the units' sums, in registers
};

/// Returns whether this path supports a product: blocks of 4, 8, 12 … 32 products of at most 23
/// bits, such as products of fp8, fp16, bf16 and tf32, without scales.
inline bool takes_units(const AccumulatorPlan& plan) {
  const BlockFmaPlan& unit = plan.unit;
  const int whole = unit.group > 0 ? unit.group : unit.block;
  return plan.scheme == Scheme::block_fma && unit.has_short_blocks && unit.block % kGroup == 0 &&
         whole <= kWideDepth;
}

}  // namespace cpd::cuda
