// SPDX-License-Identifier: Apache-2.0
//
// Computes tiles of sums in registers by the steps of a fast path (numeric/fast) on a GPU. Contains
// the work of each thread between the barriers of its thread block; compiles for host and device.
// gemm_general.h has the general path.
//
// A thread block computes 64 x 64 sums; each thread has 4 x 4 sums in registers. 32 values of k at
// a time are copied to shared memory. The bounds of a thread's products are found for groups of 4
// values of k: a group whose sums might overflow takes the general path.
//
// Instructions of a product and its sum, counted in the machine code for sm_90 of the unrolled loop
// with its loads and bounds, on the shortest path (tests/python/project/test_sass.py):
//   rounded  8.4
//   rounded, any bits  9.7
//   exact    11.2
//   Kahan    17.8
//   Kahan, any bits  19.0
//   plain    2.2
// "Any bits" means operands of more than 11 significant bits (has_short_products).
//
// The limit is the rate at which instructions issue: 3.3e13 lane operations a second (132
// processors x 128 lanes x 1.98 GHz); comparisons, maxima and logic run at half that rate. That
// allows 3.9e12 rounded products a second, 3.0e12 exact products and 1.9e12 products summed by
// Kahan's scheme.
#pragma once

#include "cpd/numeric/fast/choose.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "kernels/cuda/gemm_general.h"

namespace cpd::cuda {

#if defined(__CUDACC__)
#define CPD_COLD __host__ __device__ __noinline__
#else
#define CPD_COLD inline __attribute__((noinline))
#endif

constexpr int kPatch = 4;
constexpr int kWide = 16 * kPatch;
constexpr int kWideDepth = 32;
constexpr int kGroup = 4;
constexpr int kWideThreads = 256;

/// Four values that a thread reads with one instruction.
struct alignas(16) Four {
  float x[kPatch];
};

/// The values of one operand in shared memory. For each group of kGroup successive k and kPatch
/// lines (rows of a or columns of b): the largest magnitude, and the bitwise or of the fraction
/// bits.
struct WideOperand {
  Four values[kWideDepth][kWide / kPatch + 1];
  std::uint32_t largest[kWideDepth / kGroup][kWide / kPatch];
  std::uint32_t fraction[kWideDepth / kGroup][kWide / kPatch];

  CPD_FN float* at(int k, int line) { return &values[k][line / kPatch].x[line % kPatch]; }
};
struct WideMemory {
  WideOperand a, b;
};

/// Reads this thread's share of kLines lines (rows of a or columns of b), `count` values of k each,
/// and calls take(k, line, value). Values beyond the matrix or beyond `count` are +0.
template <int kLines, class Take>
CPD_FN void load_lines(const ProductOperand& x, std::int64_t first, std::int64_t line_stride,
                       std::int64_t k_stride, std::int64_t lines, int count, int thread,
                       Take take) {
  const bool along_k = k_stride == 1;
  int k = along_k ? thread % kWideDepth : thread / kLines;
  int line = along_k ? thread / kWideDepth : thread % kLines;
  const int k_step = along_k ? 0 : kWideThreads / kLines;
  const int line_step = along_k ? kWideThreads / kWideDepth : 0;
  for (int i = 0; i < kLines * kWideDepth / kWideThreads; ++i) {
    const bool inside = k < count && line < lines;
    take(k, line,
         inside ? value_at(x.data, x.dtype, first + line * line_stride + k * k_stride) : 0.0F);
    k += k_step;
    line += line_step;
  }
}
/// Copies this thread's share of both operands to shared memory: values k … k + count - 1 of the
/// tile's rows of a and columns of b.
template <int kLines, class TakeA, class TakeB>
CPD_FN void load_operands(const MatrixProduct& p, const TilePlace& place, std::int64_t k, int count,
                          int thread, TakeA take_a, TakeB take_b) {
  load_lines<kLines>(p.a, place.a + place.row * p.a.row_stride + k * p.a.column_stride,
                     p.a.row_stride, p.a.column_stride, p.rows - place.row, count, thread, take_a);
  load_lines<kLines>(p.b, place.b + place.column * p.b.column_stride + k * p.b.row_stride,
                     p.b.column_stride, p.b.row_stride, p.columns - place.column, count, thread,
                     take_b);
}

/// The position of a thread's 4 x 4 sums in the product.
struct PatchPlace {
  const MatrixProduct& product;
  TilePlace tile;
  int thread;

  [[nodiscard]] CPD_FN int a_patch() const { return thread / (kWide / kPatch); }
  [[nodiscard]] CPD_FN int b_patch() const { return thread % (kWide / kPatch); }
  [[nodiscard]] CPD_FN std::int64_t row_of(int i) const {
    return tile.row + a_patch() * kPatch + i / kPatch;
  }
  [[nodiscard]] CPD_FN std::int64_t column_of(int i) const {
    return tile.column + b_patch() * kPatch + i % kPatch;
  }
  [[nodiscard]] CPD_FN bool is_inside(int i) const {
    return row_of(i) < product.rows && column_of(i) < product.columns;
  }
  /// Returns the initial value of sum i, before it is rounded.
  [[nodiscard]] CPD_FN float addend(int i) const {
    const ProductOperand& c = product.c;
    if (c.data == nullptr || !is_inside(i)) return 0.0F;
    return value_at(c.data, c.dtype,
                    tile.c + row_of(i) * c.row_stride + column_of(i) * c.column_stride);
  }
  CPD_FN void store(int i, float result) const {
    const auto& out = product.out;
    if (!is_inside(i)) return;
    set_value_at(out.data, out.dtype,
                 tile.out + row_of(i) * out.row_stride + column_of(i) * out.column_stride, result);
  }
};

/// Finds the bounds of kPatch lines (rows of a or columns of b) of one operand in one group of
/// kGroup successive k. All threads together find the bounds of all values of both operands.
CPD_FN void bound_wide(WideMemory& memory, int thread) {
  constexpr int kPatches = kWide / kPatch;
  constexpr int kEntries = kWideDepth / kGroup * kPatches;
  WideOperand& x = thread < kEntries ? memory.a : memory.b;
  const int group = thread % kEntries / kPatches;
  const int patch = thread % kPatches;
  TileRange range = TileRange::none();
  for (int k = group * kGroup; k < (group + 1) * kGroup; ++k) {
    const Four values = x.values[k][patch];
    for (const float value : values.x) range.take(value);
  }
  x.largest[group][patch] = range.largest;
  x.fraction[group][patch] = range.fraction;
}

/// Memory for a thread's sums. Sums are usually in registers, but are copied to this memory for the
/// general path and for the ends of chunks.
struct PatchSums {
  float sum[kPatch * kPatch];
  float lost[kPatch * kPatch];
  float outer[kPatch * kPatch];  ///< sums over the chunks
};

/// The operands of one of a thread's 4 x 4 sums, in shared memory: a row of a and a column of b.
/// a(k) and b(k) return the values at k.
struct PatchOperands {
  const Four* a_values;
  const Four* b_values;
  int row, column;

  CPD_FN float a(std::int64_t k) const { return a_values[k * (kWide / kPatch + 1)].x[row]; }
  CPD_FN float b(std::int64_t k) const { return b_values[k * (kWide / kPatch + 1)].x[column]; }
};
template <class V, class Operands>
struct PatchLines {
  Operands at;
  CPD_FN V a(std::int64_t k) const { return at.a(k); }
  CPD_FN V b(std::int64_t k) const { return at.b(k); }
};
struct PatchState {
  PatchSums* sums;
  int number;
};
template <class V>
struct PatchPlanes {
  PatchState at;
  CPD_FN V load(int plane) const { return (plane == 0 ? at.sums->sum : at.sums->lost)[at.number]; }
  CPD_FN void store(int plane, V x) const {
    (plane == 0 ? at.sums->sum : at.sums->lost)[at.number] = static_cast<float>(x);
  }
};

/// Adds `count` products to each sum in memory, by the general path. `operands` begins at the first
/// of these products.
template <class Path, Scheme kScheme, class V, class Operands>
CPD_FN void add_general(const GemmPlan& plan, const Operands& operands, int count,
                        PatchSums& sums) {
  using R = Rule<Rounding::nearest_even>;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int i = 0; i < kPatch * kPatch; ++i) {
    Operands at = operands;
    at.row += i / kPatch;
    at.column += i % kPatch;
    GemmSums<R, V, Path::kAddsExact, PatchLines<V, Operands>, PatchPlanes<V>> loop(
        plan, {at}, {{&sums, i}}, SumDraws<R, V>(0, 0, 0, 0, 0));
    if constexpr (kScheme == Scheme::kahan) {
      loop.kahan(count);
    } else {
      loop.sequential(count);
    }
  }
}
template <class Path, Scheme kScheme, class Operands>
CPD_COLD void add_carefully(const GemmPlan& plan, const Operands& operands, int count, bool narrow,
                            PatchSums& sums) {
  if constexpr (!Path::kAddsExact) {
    if (narrow) return add_general<Path, kScheme, float>(plan, operands, count, sums);
  }
  add_general<Path, kScheme, double>(plan, operands, count, sums);
}

/// Sets to[i] = round(to[i] + x[i]) for each sum i of a thread. If x is null, sets to[i] =
/// round(to[i]).
CPD_COLD void round_patch(const RoundPlan& plan, const float* x, float* to) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int i = 0; i < kPatch * kPatch; ++i) {
    const double exact = x == nullptr ? double{to[i]} : add_to_odd<double>(to[i], x[i]);
    to[i] = static_cast<float>(round<Rounding::nearest_even>(exact, std::uint64_t{0}, plan));
  }
}

/// Finds the ends of the chunks into which a sum is divided: counts the products that were added to
/// each sum since the last chunk ended.
class ChunkCount {
 public:
  CPD_FN explicit ChunkCount(const GemmCall& call) : left_(call.plan.chunk) {}

  /// Call after adding `length` more products to each sum. `done` is the number of products in a
  /// sum so far. Returns whether the sum's current chunk is then complete.
  CPD_FN bool ends(const GemmCall& call, int length, std::int64_t done) {
    if (call.plan.chunk == 0) return false;
    left_ -= length;
    if (left_ > 0 && done < call.product.depth) return false;
    left_ = call.plan.chunk;
    return true;
  }

 private:
  std::int64_t left_;
};
CPD_FN void end_chunk(const AccumulatorPlan& plan, PatchSums& sums) {
  round_patch(plan.outer.round, sums.sum, sums.outer);
  for (float& sum : sums.sum) sum = 0.0F;
}

/// Returns whether split_short rounds the products correctly. `fraction` is the bitwise or of the
/// fraction bits of both operands' values. Factors of at most 11 bits give products of at most 22
/// bits; binary32 then loses bits only far below the least spacing of the format.
CPD_FN bool has_short_products(const FastPlan& plan, std::uint32_t fraction) {
  constexpr std::uint32_t kBeyond11Bits = Pattern<float>::fraction >> 10;
  return (fraction & kBeyond11Bits) == 0 && plan.product_least > 0x1p-120F;
}

/// Returns the number of products that are added to each sum between two checks for overflow.
constexpr int steps_of(Scheme scheme) { return scheme == Scheme::kahan ? kShortSteps : kGroup; }

/// Computes 4 x 4 sums in a thread.
template <class Path, Scheme kScheme>
class WideThread {
 public:
  CPD_FN WideThread(const GemmCall& call, const TilePlace& place, int thread, PatchSums& sums)
      : call_(call), sums_(sums), place_{call.product, place, thread}, steps_(call.plan.sum.fast) {}

  /// Sets the thread's sums in memory (sums_) to their initial values.
  CPD_FN void begin() {
    float* start = kChunks && call_.plan.chunk > 0 ? sums_.outer : sums_.sum;
    for (int i = 0; i < kPatch * kPatch; ++i) sums_.sum[i] = sums_.lost[i] = 0.0F;
    for (int i = 0; i < kPatch * kPatch; ++i) start[i] = place_.addend(i);
    if (!Path::kAnyValues) round_patch(call_.plan.first.round, nullptr, start);
  }
  /// write_sums copies the sums from registers to memory; read_sums copies the sums from memory to
  /// registers.
  CPD_FN void write_sums() {
    for (int i = 0; i < kPatch * kPatch; ++i) {
      sums_.sum[i] = s_[i / kPatch][i % kPatch];
      if (kCompensates) sums_.lost[i] = c_[i / kPatch][i % kPatch];
    }
  }
  CPD_FN void read_sums() {
    ordinary_ = true;
    for (int i = 0; i < kPatch * kPatch; ++i) {
      s_[i / kPatch][i % kPatch] = sums_.sum[i];
      ordinary_ = ordinary_ && is_ordinary(sums_.sum[i]);
      if (!kCompensates) continue;
      c_[i / kPatch][i % kPatch] = sums_.lost[i];
      ordinary_ = ordinary_ && sums_.lost[i] == sums_.lost[i];
    }
  }

  CPD_FN void load(WideMemory& memory, std::int64_t k, int count) const {
    load_operands<kWide>(
        call_.product, place_.tile, k, count, place_.thread,
        [&](int at, int line, float x) { *memory.a.at(at, line) = x; },
        [&](int at, int line, float x) { *memory.b.at(at, line) = x; });
  }
  CPD_FN void bound(WideMemory& memory) const {
    if (!Path::kAnyValues) bound_wide(memory, place_.thread);
  }
  CPD_FN void add(const WideMemory& memory, std::int64_t k, int count, ChunkCount& chunk) {
    if constexpr (Path::kAnyValues) {
      if (call_.plan.sum.exact_products) {
        for (int i = 0; i < count; ++i) step_row<ProductKind::exact>(memory, i);
      } else {
        for (int i = 0; i < count; ++i) step_row<ProductKind::any>(memory, i);
      }
    } else {
      for (int i = 0; i < count; i += kGroup) {
        const int length = count - i < kGroup ? count - i : kGroup;
        add_group(memory, i, length);
        if (kChunks && chunk.ends(call_, length, k + i + length)) {
          write_sums();
          end_chunk(call_.plan, sums_);
          read_sums();
        }
      }
    }
  }
  /// Stores the results of the thread's 4 x 4 sums.
  CPD_FN void store() const {
    const float* results = kChunks && call_.plan.chunk > 0 ? sums_.outer : sums_.sum;
    for (int i = 0; i < kPatch * kPatch; ++i) place_.store(i, result_of(results[i]));
  }

 private:
  static constexpr bool kCompensates = kScheme == Scheme::kahan;
  static constexpr int kSteps = steps_of(kScheme);
  static constexpr bool kRounds = !Path::kAnyValues && !Path::kAddsExact;  ///< products
  static constexpr bool kChunks = !kCompensates && !Path::kAnyValues;

  /// Returns false for NaN and for -0, which the fast roundings do not support.
  CPD_FN static bool is_ordinary(float sum) {
    return sum == sum && bits_as<std::uint32_t>(sum) != Pattern<float>::sign;
  }

  CPD_FN void add_group(const WideMemory& memory, int k, int length) {
    const FastPlan& fast = call_.plan.sum.fast;
    const int patch_a = place_.a_patch();
    const int patch_b = place_.b_patch();
    const float largest_a = bits_as<float>(memory.a.largest[k / kGroup][patch_a]);
    const float largest_b = bits_as<float>(memory.b.largest[k / kGroup][patch_b]);
    const float products = largest_a * largest_b * static_cast<float>(kSteps);
    const float limit = sum_limit(fast, bound_products(fast, products, kSteps, largest_b));
    const bool is_short = has_short_products(
        fast, memory.a.fraction[k / kGroup][patch_a] | memory.b.fraction[k / kGroup][patch_b]);
    if (length < kGroup) return carefully(memory, k, length, patch_a, patch_b);
    for (int i = 0; i < kGroup; i += kSteps) {
      if (!ordinary_ || !(weighed(fast) <= limit)) {
        carefully(memory, k + i, kSteps, patch_a, patch_b);
      } else if (!Path::kAddsExact && is_short) {
        add_steps<ProductKind::few>(memory, k + i);
      } else {
        add_steps<ProductKind::any>(memory, k + i);
      }
    }
  }
  template <ProductKind kProducts>
  CPD_FN void add_steps(const WideMemory& memory, int k) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int i = 0; i < kSteps; ++i) step_row<kProducts>(memory, k + i);
  }

  /// Returns the value that the fast path compares with its limit. This value is the thread's
  /// largest sum. For Kahan sums it is s * of_sum + c * of_compensation (FastPlan), where s is the
  /// largest sum and c the largest compensation.
  CPD_FN float weighed(const FastPlan& fast) const {
    const float most = largest_of(s_);
    if constexpr (!kCompensates) return most;
    return most * fast.of_sum + largest_of(c_) * fast.of_compensation;
  }
  CPD_FN static float largest_of(const float (&x)[kPatch][kPatch]) {
    float most = x[0][0];
    for (int i = 1; i < kPatch * kPatch; ++i) {
      most = larger_magnitude(most, x[i / kPatch][i % kPatch]);
    }
    return most;
  }

  /// Adds the products at one k to the thread's sums. The caller must have checked that no sum can
  /// overflow.
  template <ProductKind kProducts>
  CPD_FN void step_row(const WideMemory& memory, int k) {
    const Four a = memory.a.values[k][place_.a_patch()];
    const Four b = memory.b.values[k][place_.b_patch()];
    for (int j = 0; j < kPatch; ++j) {
      FactorOperands<float> x[1] = {{0, b.x[j], 0}};
      if constexpr (kProducts == ProductKind::any && kRounds)
        x[0].factor_b = b.x[j] * steps_.factor();
      for (int i = 0; i < kPatch; ++i) {
        x[0].a = a.x[i];
        step<kProducts>(x, s_[i][j], c_[i][j]);
      }
    }
  }
  template <ProductKind kProducts>
  CPD_FN void step(const FactorOperands<float> (&x)[1], float& s, float& c) const {
    Seen<float> seen;
    if constexpr (kCompensates) {
      steps_.template add_kahan<How::bounded, kProducts>(x, &s, &c, seen);
    } else {
      s = steps_.template add_product<How::bounded, kProducts>(x[0], s, seen);
    }
  }

  CPD_FN void carefully(const WideMemory& memory, int k, int count, int patch_a, int patch_b) {
    const GemmPlan& plan = call_.plan.sum;
    const bool narrow = fits_binary32(plan, memory.a.fraction[k / kGroup][patch_a],
                                      memory.b.fraction[k / kGroup][patch_b]);
    write_sums();
    const PatchOperands operands{&memory.a.values[k][patch_a], &memory.b.values[k][patch_b], 0, 0};
    add_carefully<Path, kScheme>(plan, operands, count, narrow, sums_);
    read_sums();
  }

  const GemmCall& call_;
  PatchSums& sums_;
  PatchPlace place_;
  ProductSteps<Path, float> steps_;
  float s_[kPatch][kPatch], c_[kPatch][kPatch];  ///< the sums, in registers
  bool ordinary_ = true;                         ///< is_ordinary of all sums
};

/// Calls run.operator()<Path, scheme>() with the plan's fast path and scheme, and returns true.
/// Returns false without a call if WideThread does not support them.
template <class Run>
CPD_FN bool with_wide(const GemmPlan& plan, Run run) {
  bool taken = false;
  with_path(plan.fast.path, [&]<class Path>() {
    if constexpr (Path::kTakesProducts && !Path::kStochastic) {
      if (plan.scheme == Scheme::sequential) {
        run.template operator()<Path, Scheme::sequential>();
        taken = true;
      }
      if constexpr (!Path::kAnyValues && !Path::kAddsExact) {
        if (plan.scheme == Scheme::kahan) {
          run.template operator()<Path, Scheme::kahan>();
          taken = true;
        }
      }
    }
  });
  return taken;
}

/// Returns whether the kernels of this file, with sums in registers, support a product. Chunks must
/// have a multiple of kGroup products.
inline bool takes_wide(const AccumulatorPlan& plan) {
  if (plan.ends_in_kernel() || plan.sum.fast.guarded) return false;
  bool takes = false;
  with_wide(plan.sum, [&]<class Path, Scheme kScheme>() {
    takes = Path::kAnyValues ? plan.chunk == 0
                             : plan.sum.fast.steps >= steps_of(kScheme) && plan.chunk % kGroup == 0;
  });
  return takes;
}

}  // namespace cpd::cuda
