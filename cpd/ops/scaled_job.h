// SPDX-License-Identifier: Apache-2.0
//
// A call on a scaled format: its scales, and the walk over strips of its tensor that forms them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/ops/block_layout.h"
#include "cpd/ops/elementwise.h"
#include "cpd/ops/scaled.h"

namespace cpd {

using Floats = std::vector<float>;

inline std::span<const std::int64_t> ShapeOf(const TensorView& x) {
  return {x.shape.data(), static_cast<std::size_t>(x.rank)};
}

/// parallel_for over the strips' numbers.
void ForStrips(const Strips& strips, const std::function<void(std::int64_t, std::int64_t)>& body);

/// StripRows of values in memory.
struct StripRows {
  const float* at;
  std::int64_t stride;
};

/// Reads strips of a tensor.
class StripReader {
 public:
  StripReader(const TensorView& x, const BlockLayout& layout) : reader_(x), layout_(layout) {}
  [[nodiscard]] bool is_direct() const { return reader_.is_direct(); }

  /// Valid until the next call.
  StripRows Read(const Strip& strip) {
    const std::int64_t begin = layout_.index(strip.p, strip.i, strip.t, strip.j);
    if (is_direct()) return {reader_.Read(begin, strip.count), layout_.row_stride()};
    values_.resize(static_cast<std::size_t>(strip.rows * strip.count));
    for (std::int64_t r = 0; r < strip.rows; ++r) {
      for (std::int64_t c = 0; c < strip.count; c += kStage) {
        const std::int64_t n = std::min(kStage, strip.count - c);
        const float* from = reader_.Read(begin + r * layout_.row_stride() + c, n);
        std::copy_n(from, n, values_.data() + r * strip.count + c);
      }
    }
    return {values_.data(), strip.count};
  }

 private:
  Reader<float> reader_;
  const BlockLayout& layout_;
  Floats values_;
};

/// The second level, a number for each of its cells; one cell of 1 where there is none.
struct OuterScales {
  Floats scale{1}, encode{1}, largest{0};
  std::int64_t extent = 0, after = 1;  ///< of rows: along the axis, and behind it; 0: one cell

  [[nodiscard]] std::int64_t cell(std::int64_t index) const {
    return extent == 0 ? 0 : index / (extent * after) * after + index % after;
  }
};

/// A call: what it works on, and its scales.
struct ScaledJob {
  const TensorView& x;
  const RoundingOptions& options;
  const TensorView* random;
  ScaledPlan plan;
  ElementRoute route;
  ScaleChoice choose;
  BlockLayout layout;
  OuterScales outer;
  ScaledPlan nearest{};  ///< the same, for candidates
  Floats scale;          ///< of each block
  bool known = false;    ///< before elements are looked at; then also:
  Floats by{}, decode{};

  /// Of strips: whole blocks where their scales are still to be formed.
  [[nodiscard]] Strips strips() const { return {layout, !known}; }
};

/// Throws Error for levels that the format does not have, or that exclude each other.
void CheckLevels(const Scaled& scaled, const GivenScales& given);
/// Of a tensor of at least one element, after CheckLevels.
ScaledJob JobOf(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
                const GivenScales& given, const TensorView* random);

/// What a strip's elements are below: a number for each block of it and, where a kernel's runs
/// cannot be blocks, for each element of a row.
struct StripScales {
  Floats largest, outer, encode, scale, by, decode;
  Floats all_by, all_decode, all_outer;
  ElementRoute route = ElementRoute::wide;
};

/// The random integers of strips: given, or made for their elements.
class StripIntegers {
 public:
  explicit StripIntegers(const ScaledJob& job) : job_(job) {
    if (job.random != nullptr) given_.emplace(*job.random);
  }
  /// Of `count` elements from column `begin` on, row after row; null where rounding needs none.
  const std::uint32_t* Read(const Strip& strip, std::int64_t begin, std::int64_t count) {
    if (job_.options.mode != Rounding::stochastic) return nullptr;
    values_.resize(static_cast<std::size_t>(strip.rows * count));
    for (std::int64_t r = 0; r < strip.rows; ++r) {
      const std::int64_t first = job_.layout.index(strip.p, strip.i + r, strip.t, strip.j + begin);
      std::uint32_t* to = values_.data() + r * count;
      if (given_) {
        std::copy_n(given_->Read(first, count), count, to);
        continue;
      }
      const std::int64_t before = first % kBlock;
      if (before == 0) {
        Kernels().random_integers(job_.options.random_bits, job_.options.seed, job_.options.stream,
                                  first, count, to);
        continue;
      }
      made_.resize(static_cast<std::size_t>(before + count));
      Kernels().random_integers(job_.options.random_bits, job_.options.seed, job_.options.stream,
                                first - before, before + count, made_.data());
      std::copy_n(made_.data() + before, count, to);
    }
    return values_.data();
  }

 private:
  const ScaledJob& job_;
  std::optional<Reader<std::uint32_t>> given_;
  std::vector<std::uint32_t> values_, made_;
};

/// Goes through strips of x; what happens to their elements is the caller's.
class StripWalk {
 public:
  explicit StripWalk(ScaledJob& job) : job_(job), reader_(job.x, job.layout), integers_(job) {}

  /// Calls take(run, route, begin) for up to kStage columns of the strip at a time, of which
  /// `begin` is the first; all rows are in one run.
  template <class Take>
  void Visit(const Strip& strip, Take take) {
    if (strip.rows * strip.count == 0) return;
    const StripRows rows = reader_.Read(strip);
    FindScales(strip, rows);
    ForSteps(strip, [&](ScaledRun run, std::int64_t c) {
      run.x = rows.at + c;
      run.x_stride = rows.stride;
      run.random = integers_.Read(strip, c, run.n);
      take(run, above_.route, c);
    });
  }
  /// Calls take(run, begin) likewise, below scales that are known, without x.
  template <class Take>
  void VisitBelow(const Strip& strip, Take take) {
    if (strip.rows * strip.count == 0) return;
    FindScales(strip, {});
    ForSteps(strip, take);
  }

 private:
  template <class Take>
  void ForSteps(const Strip& strip, Take take) {
    const std::int64_t columns = job_.layout.columns;
    const bool one_block = columns >= strip.count;
    const std::int64_t step = one_block ? std::min(kStage, strip.count) : strip.count;
    ScaledRun run{.rows = strip.rows,
                  .by = above_.by.data(),
                  .scale = above_.decode.data(),
                  .outer = above_.outer.data()};
    if (one_block) {
      run.run = kStage;
    } else if (columns % 16 == 0 && (1024 % columns == 0 || columns % 1024 == 0)) {
      run.run = columns;
    } else if (columns != 1) {
      Spread(columns, step);
      run.by = above_.all_by.data();
      run.scale = above_.all_decode.data();
      run.outer = above_.all_outer.data();
    }
    for (std::int64_t c = 0; c < strip.count; c += step) {
      run.n = std::min(step, strip.count - c);
      take(run, c);
    }
  }

  void FindScales(const Strip& strip, const StripRows& rows);

  /// LargestOf strips that are looked at one after the other.
  void LargestOfBlocks(const BlockLayout& layout, const Strip& strip, const StripRows& rows);

  void FormScales(StripScales& above, double share) const;

  /// The other candidate, where it is better.
  void ChooseScales(const Strip& strip, const StripRows& rows);

  /// The errors of each of the strip's blocks, of elements rounded to nearest-even.
  std::vector<double> ErrorsOf(const Strip& strip, const StripRows& rows);

  /// Numbers of blocks for each of n elements of a row, blocks of `run`.
  void Spread(std::int64_t run, std::int64_t n);

  ScaledJob& job_;
  StripReader reader_;
  StripIntegers integers_;
  StripScales above_;
  Floats columns_, values_, ones_;
};

}  // namespace cpd
