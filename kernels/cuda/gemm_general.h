// SPDX-License-Identifier: Apache-2.0
//
// The general path of a matrix product on a GPU: the work of each thread between the barriers of
// its thread block. A thread block computes kSide x kSide sums, one in each thread, and copies
// kDepth values of k at a time to shared memory. In each such step, the bits of the operands decide
// whether products and sums are computed in binary32, if that is exact, or in binary64.
#pragma once

#include "cpd/backend/message_calls.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/sums/gemm_sums.h"
#include "cpd/numeric/sums/order.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/gemm_stochastic.h"
#include "kernels/cuda/tile_range.h"

namespace cpd::cuda {

constexpr int kSide = 16;
constexpr int kTileSums = kSide * kSide;
constexpr int kDepth = 64;
constexpr int kMostPlanes = 64;  ///< planes of a tree of any number of products

/// The shared memory of a thread block: kDepth values of k of a tile's rows of a and columns of b.
/// Step number s copies and adds such values; ranges[s mod 2] has the bounds of these operands.
struct TileMemory {
  float a[kDepth][kSide + 1];
  float b[kDepth][kSide + 1];
  TileRange ranges[2][2];
};

/// The position of a thread block's sums in the product.
struct TilePlace {
  std::int64_t batch = 0, row = 0, column = 0;
  std::int64_t a = 0, b = 0, c = 0, out = 0;  ///< the first elements of the matrices
};

CPD_FN std::int64_t tiles_along(std::int64_t n, int side) { return (n + side - 1) / side; }
CPD_FN std::int64_t tile_count(const MatrixProduct& product, std::int64_t batch, int side) {
  return batch * tiles_along(product.rows, side) * tiles_along(product.columns, side);
}

/// Returns the position of tile number `tile`. Tile numbers ascend down the rows first, then across
/// the columns, then through the batch, so that thread blocks that run together share columns.
CPD_FN TilePlace place_of(const MatrixProduct& product, std::int64_t tile, int side) {
  const std::int64_t down = tiles_along(product.rows, side);
  const std::int64_t across = tiles_along(product.columns, side);
  TilePlace place;
  place.row = tile % down * side;
  place.column = tile / down % across * side;
  place.batch = tile / down / across;
  std::int64_t rest = place.batch;
  for (int d = product.batch_rank - 1; d >= 0; --d) {
    const std::int64_t at = rest % product.batch_shape[d];
    rest /= product.batch_shape[d];
    place.a += at * product.a.batch_stride[d];
    place.b += at * product.b.batch_stride[d];
    place.c += at * product.c.batch_stride[d];
    place.out += at * product.out.batch_stride[d];
  }
  return place;
}

/// Returns the number of values of k that are copied to shared memory at a time, at most `depth`.
/// For a matrix unit, the number is a multiple of its block or group.
CPD_FN int step_of(const AccumulatorPlan& plan, int depth = kDepth) {
  if (plan.scheme != Scheme::block_fma) return depth;
  const int whole = plan.unit.group > 0 ? plan.unit.group : plan.unit.block;
  return depth / whole * whole;
}
/// Returns the index in shared memory of the value at k, counted from the first copied value.
CPD_FN int place_of_k(const AccumulatorPlan& plan, int k, int depth = kDepth) {
  if (plan.unit.group == 0 || k >= step_of(plan, depth)) return k;
  return place_in_order(plan.unit, k);
}

/// Copies this thread's share of kSide lines (rows of a or columns of b), `count` values of k each,
/// to shared memory. Elements beyond the edge of the matrix, or beyond `count`, become +0.
CPD_FN TileRange load_lines(const AccumulatorPlan& plan, const ProductOperand& x,
                            std::int64_t first, std::int64_t line_stride, std::int64_t k_stride,
                            std::int64_t lines, int count, int thread, float (*to)[kSide + 1]) {
  TileRange range = TileRange::none();
  // Neighboring threads must read neighboring memory.
  const bool along_k = k_stride == 1;
  for (int i = thread; i < kSide * kDepth; i += kTileSums) {
    const int k = along_k ? i % kDepth : i / kSide;
    const int line = along_k ? i / kDepth : i % kSide;
    const bool inside = k < count && line < lines;
    const float value =
        inside ? value_at(x.data, x.dtype, first + line * line_stride + k * k_stride) : 0.0F;
    to[place_of_k(plan, k)][line] = value;
    range.take(value);
  }
  return range;
}

/// One thread's sum.
template <class Sum>
class TileThread {
 public:
  CPD_FN TileThread(const ScaledGemmCall& call, std::int64_t tile, int thread)
      : call_(call), thread_(thread), place_(place_of(call.product, tile, kSide)) {
    const MatrixProduct& p = call.product;
    row_ = place_.row + thread / kSide;
    column_ = place_.column + thread % kSide;
    inside_ = row_ < p.rows && column_ < p.columns;
    // A thread whose sum is outside the result uses the random integers of element 0, which always
    // exist.
    const std::int64_t element =
        p.first_element + (place_.batch * p.rows + row_) * p.columns + column_;
    const auto index = static_cast<std::uint64_t>(inside_ ? element : 0);
    float c = 0.0F;
    if (inside_ && p.c.data != nullptr) {
      c = value_at(p.c.data, p.c.dtype,
                   place_.c + row_ * p.c.row_stride + column_ * p.c.column_stride);
    }
    sum_.begin(call, index, c);
  }

  /// Copies values k … k + count - 1 to shared memory. The caller must place a barrier after this
  /// call.
  CPD_FN void load(TileMemory& memory, std::int64_t k, int count, TileRange& a,
                   TileRange& b) const {
    const MatrixProduct& p = call_.product;
    a = load_lines(call_.plan, p.a, place_.a + place_.row * p.a.row_stride + k * p.a.column_stride,
                   p.a.row_stride, p.a.column_stride, p.rows - place_.row, count, thread_,
                   memory.a);
    b = load_lines(
        call_.plan, p.b, place_.b + place_.column * p.b.column_stride + k * p.b.row_stride,
        p.b.column_stride, p.b.row_stride, p.columns - place_.column, count, thread_, memory.b);
  }
  /// Adds the products of the values in shared memory to the thread's sum. The caller must place a
  /// barrier before this call.
  CPD_FN void add(const TileMemory& memory, std::int64_t k, int count, const TileRange* ranges) {
    sum_.add(call_, &memory.a[0][thread_ / kSide], &memory.b[0][thread_ % kSide], k, count, ranges);
  }
  CPD_FN void store() {
    const MatrixProduct& p = call_.product;
    const float result = sum_.end(call_);
    if (!inside_) return;
    set_value_at(p.out.data, p.out.dtype,
                 place_.out + row_ * p.out.row_stride + column_ * p.out.column_stride, result);
  }

 private:
  const ScaledGemmCall& call_;
  int thread_;
  TilePlace place_;
  std::int64_t row_, column_;
  bool inside_;
  Sum sum_;
};

/// A row of a and a column of b in shared memory, converted to V.
template <class V>
struct TileOperands {
  const float* a_line;
  const float* b_line;
  CPD_FN V a(std::int64_t k) const { return a_line[k * (kSide + 1)]; }
  CPD_FN V b(std::int64_t k) const { return b_line[k * (kSide + 1)]; }
};

template <class V>
struct TileState {
  float* planes;
  CPD_FN V load(int plane) const { return planes[plane]; }
  CPD_FN void store(int plane, V x) const { planes[plane] = static_cast<float>(x); }
};

/// The seed and the stream of a sum's random integers, and the number (`index`) of the sum's
/// element in the result.
struct RandomKey {
  std::uint64_t seed = 0, stream = 0, index = 0;
  const std::uint32_t* given = nullptr;  ///< the element's draws, in place of Philox's
};

CPD_FN RandomKey random_key(const RoundPlan& plan, const GemmCall& call, std::uint64_t index) {
  const GivenDraws own = call.random.from(static_cast<std::int64_t>(index));
  return {call.key.seed != nullptr ? *call.key.seed : plan.seed,
          call.key.stream != nullptr ? *call.key.stream : plan.stream, index, own.random};
}

/// Reads the random integers that the caller gives for one element: next() returns the next one.
template <class V>
struct ElementDraws {
  const std::uint32_t* at;
  CPD_FN Unsigned<V> next() { return Unsigned<V>{*at++}; }
};

/// Returns random integer number t of the element key.index. Returns 0 unless R rounds
/// stochastically.
template <class R, class V>
CPD_FN Unsigned<V> draw(const RoundPlan& plan, const RandomKey& key, std::uint64_t t) {
  if constexpr (R::mode == Rounding::stochastic) {
    if (key.given != nullptr) return Unsigned<V>{key.given[t]};
    return fold_draw(plan.random_bits, key.seed, key.stream, static_cast<std::uint32_t>(key.index),
                     key.index, t);
  } else {
    return Unsigned<V>{};
  }
}

/// Returns x, or CPD's canonical NaN if x is NaN.
CPD_FN float result_of(float x) { return x == x ? x : bits_as<float>(Pattern<float>::quiet_nan); }

/// `depth` is the number of products in a sum. `draws` is the number of random integers that
/// earlier sums of the same element have used (a product with scales has several sums).
struct SumSpan {
  std::int64_t depth = 0;
  std::uint64_t draws = 0;
};

/// Computes a sum of any scheme except block_fma: sequential, chunked, Kahan's or pairwise.
template <Rounding mode, Scheme scheme>
class OrderedSum {
 public:
  CPD_FN void begin(const GemmCall& call, std::uint64_t index, float c, const SumSpan& span) {
    span_ = span;
    const RoundPlan& first = call.plan.first.round;
    key_ = random_key(first, call, index);
    const auto start = static_cast<float>(
        round<R>(static_cast<double>(c), draw<R, double>(first, key_, 0), first));
    for (int plane = 0; plane < kPlanes; ++plane) state_[plane] = 0.0F;
    (call.plan.chunk > 0 ? outer_ : state_[0]) = start;
  }

  template <class Scales>
  CPD_FN void add(const GemmCall& call, const float* a, const float* b, std::int64_t k, int count,
                  const TileRange* ranges, const Scales&) {
    const AccumulatorPlan& plan = call.plan;
    const bool chunked = scheme == Scheme::sequential && plan.chunk > 0;
    SumWalk walk(
        product_order(chunked ? Scheme::chunked : scheme, plan.sum.exact_products, plan.chunk), k);
    if (!chunked) return add_products(call, a, b, k, count, walk.first_draw(), ranges);
    Chunks chunks{*this, call, a, b, ranges};
    walk.take(chunks, count);
    if (k + count == span_.depth) walk.end(chunks);
  }

  CPD_FN float end(const GemmCall& call) const {
    return result_of(call.plan.chunk > 0 ? outer_ : state_[0]);
  }

 private:
  using R = Rule<mode, Form::general>;
  static constexpr int kPlanes = scheme == Scheme::pairwise ? kMostPlanes
                                 : scheme == Scheme::kahan  ? 2
                                                            : 1;

  /// The steps of a sum in chunks, which SumWalk calls: add_terms adds products to the sum of a
  /// chunk, and add_chunk adds this sum to the outer sum.
  struct Chunks {
    OrderedSum& sum;
    const GemmCall& call;
    const float* a;
    const float* b;
    const TileRange* ranges;

    CPD_FN void add_terms(int, bool starts, std::int64_t draw, std::int64_t first,
                          std::int64_t count) {
      if (starts) sum.state_[0] = 0.0F;
      const std::int64_t at = first * (kSide + 1);
      sum.add_products(call, a + at, b + at, 0, static_cast<int>(count), draw, ranges);
    }
    CPD_FN void add_chunk(bool, std::int64_t number) {
      const RoundPlan& plan = call.plan.outer.round;
      const auto random = draw<R, double>(plan, sum.key_, sum.number_of(call, number));
      sum.outer_ =
          static_cast<float>(rounded_sum<R, double>(sum.outer_, sum.state_[0], random, plan));
    }
  };

  CPD_FN void add_products(const GemmCall& call, const float* a, const float* b, std::int64_t k,
                           int count, std::int64_t draw, const TileRange* ranges) {
    const GemmPlan& plan = call.plan.sum;
    const std::uint64_t first = number_of(call, draw);
    if constexpr (mode == Rounding::stochastic && scheme == Scheme::sequential) {
      if (add_short(plan, a, b, count, first, ranges)) return;
    }
    if (plan.exact_products) return add_as<double, true>(plan, a, b, k, count, first);
    if constexpr (mode != Rounding::stochastic) {
      if (fits_binary32(plan, ranges[0].fraction, ranges[1].fraction)) {
        return add_as<float, false>(plan, a, b, k, count, first);
      }
    }
    add_as<double, false>(plan, a, b, k, count, first);
  }

  /// Converts the number `draw` of a random integer, counted from this sum's first integer, to its
  /// number among all random integers of the element.
  [[nodiscard]] CPD_FN std::uint64_t number_of(const GemmCall& call, std::int64_t draw) const {
    if constexpr (mode != Rounding::stochastic) return 0;
    return call.plan.sum.first_draw + span_.draws + static_cast<std::uint64_t>(draw);
  }

  /// Adds products by the fast path for stochastic roundings. Returns false and adds nothing if the
  /// fast path is not exact.
  CPD_FN bool add_short(const GemmPlan& plan, const float* a, const float* b, int count,
                        std::uint64_t first, const TileRange* ranges) {
    if (key_.given != nullptr || !has_short_steps(plan, first)) return false;
    const int spare = spare_of(plan, ranges[0], ranges[1]);
    if (spare < 0) return false;
    const double largest = static_cast<double>(bits_as<float>(ranges[0].largest)) *
                           static_cast<double>(bits_as<float>(ranges[1].largest));
    const bool products_fit = largest <= plan.fast.stochastic.product.max;
    state_[0] = add_stochastic({plan, key_.seed, key_.stream, key_.index, first, spare, a, b,
                                kSide + 1, count, products_fit},
                               state_[0]);
    return true;
  }

  template <class V, bool kExactProducts>
  CPD_FN void add_as(const GemmPlan& plan, const float* a, const float* b, std::int64_t k,
                     int count, std::uint64_t first) {
    if constexpr (mode == Rounding::stochastic) {
      if (key_.given != nullptr) {
        return add_drawing<V, kExactProducts>(plan, a, b, k, count,
                                              ElementDraws<V>{key_.given + first});
      }
    }
    add_drawing<V, kExactProducts>(
        plan, a, b, k, count,
        SumDraws<R, V>(plan.sum.random_bits, key_.seed, key_.stream, key_.index, first));
  }

  template <class V, bool kExactProducts, class Draws>
  CPD_FN void add_drawing(const GemmPlan& plan, const float* a, const float* b, std::int64_t k,
                          int count, Draws draws) {
    GemmSums<R, V, kExactProducts, TileOperands<V>, TileState<V>, Draws> sums(plan, {a, b},
                                                                              {state_}, draws);
    SumWalk walk(product_order(scheme, kExactProducts), k);
    walk.take(sums, count);
    if (k + count == span_.depth) walk.end(sums);
  }

  SumSpan span_;
  RandomKey key_;
  float outer_ = 0.0F;  ///< the sum over the chunks
  float state_[kPlanes];
};

/// Returns how many of the values at k, k + 1, … the next step copies to shared memory: `step`, or
/// fewer at the end of the product.
CPD_FN int values_in_step(const GemmCall& call, std::int64_t k, int step) {
  const std::int64_t left = call.product.depth - k;
  return left < step ? static_cast<int>(left) : step;
}

}  // namespace cpd::cuda
