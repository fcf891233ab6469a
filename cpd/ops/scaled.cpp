// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/scaled.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/error.h"
#include "cpd/numeric/scaled_choice.h"
#include "cpd/ops/block_layout.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/elementwise.h"
#include "cpd/ops/hadamard.h"

namespace cpd {
namespace {

using Floats = std::vector<float>;

/// Elements of a block up to which its scale and its values are formed in one go, within the L2
/// cache.
constexpr std::int64_t kWhole = std::int64_t{1} << 17;

std::span<const std::int64_t> ShapeOf(const TensorView& x) {
  return {x.shape.data(), static_cast<std::size_t>(x.rank)};
}

void ForStrips(const Strips& strips, const std::function<void(std::int64_t, std::int64_t)>& body) {
  parallel_for(strips.size(), 1, kSerialBelow / strips.elements(), body);
}

// ---- largest magnitudes -------------------------------------------------------------------------

/// Rows of values in memory.
struct Rows {
  const float* at;
  std::int64_t stride;
};

/// Reads strips of a tensor.
class StripReader {
 public:
  StripReader(const TensorView& x, const BlockLayout& layout) : reader_(x), layout_(layout) {}
  [[nodiscard]] bool is_direct() const { return reader_.is_direct(); }

  /// Valid until the next call.
  Rows Read(const Strip& strip) {
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

/// The largest |x| of each of a strip's blocks.
void LargestOf(const BlockLayout& layout, bool with_nan, const Strip& strip, const Rows& rows,
               Floats& columns, float* largest) {
  const std::int64_t run = std::min(layout.columns, strip.count);
  if (strip.rows == 1) {
    return Kernels().block_max(with_nan, run, strip.count, rows.at, largest);
  }
  if (run == 1) {
    return Kernels().column_max(with_nan, strip.rows, rows.stride, strip.count, rows.at, largest);
  }
  columns.resize(static_cast<std::size_t>(strip.count));
  Kernels().column_max(with_nan, strip.rows, rows.stride, strip.count, rows.at, columns.data());
  Kernels().block_max(true, run, strip.count, columns.data(), largest);
}

/// The same of a whole tensor.
Floats LargestOf(const TensorView& x, const BlockLayout& layout, bool with_nan) {
  std::vector<std::atomic<std::uint32_t>> most(static_cast<std::size_t>(layout.blocks()));
  const Strips strips(layout, false);
  ForStrips(strips, [&](std::int64_t begin, std::int64_t end) {
    StripReader reader(x, layout);
    Floats columns;
    Floats largest(static_cast<std::size_t>(strips.elements()));
    for (std::int64_t s = begin; s < end; ++s) {
      const Strip strip = strips[s];
      if (strip.rows * strip.count == 0) continue;
      LargestOf(layout, with_nan, strip, reader.Read(strip), columns, largest.data());
      const std::int64_t first = layout.block(strip.p, strip.i, strip.t, strip.j);
      const std::int64_t count = (strip.count + layout.columns - 1) / layout.columns;
      for (std::int64_t b = 0; b < count; ++b) {
        const auto mine = std::bit_cast<std::uint32_t>(largest[b]);
        std::atomic<std::uint32_t>& all = most[first + b];
        std::uint32_t seen = all;
        while (seen < mine && !all.compare_exchange_weak(seen, mine)) {
        }
      }
    }
  });
  Floats result(most.size());
  std::ranges::transform(most, result.begin(),
                         [](const auto& bits) { return std::bit_cast<float>(bits.load()); });
  return result;
}

// ---- scales -------------------------------------------------------------------------------------

/// The second level, a number for each of its cells; one cell of 1 where there is none.
struct Outer {
  Floats scale{1}, encode{1}, largest{0};
  std::int64_t extent = 0, after = 1;  ///< of rows: along the axis, and behind it; 0: one cell

  [[nodiscard]] std::int64_t cell(std::int64_t index) const {
    return extent == 0 ? 0 : index / (extent * after) * after + index % after;
  }
};

/// A call: what it works on, and its scales.
struct Job {
  const TensorView& x;
  const RoundingOptions& options;
  const TensorView* random;
  ScaledPlan plan;
  ElementRoute route;
  ScaleChoice choose;
  BlockLayout layout;
  Outer outer;
  ScaledPlan nearest{};  ///< the same, for candidates
  Floats scale;          ///< of each block
  bool known = false;    ///< before elements are looked at; then also:
  Floats by{}, decode{};

  /// Of strips: whole blocks where their scales are still to be formed.
  [[nodiscard]] Strips strips() const { return {layout, !known}; }
};

/// A level's given scales as numbers of its format.
Floats Given(const TensorView& given, const Format& format, std::int64_t count, const char* name) {
  Check(given, name);
  Floats values(static_cast<std::size_t>(count));
  const TensorView to = View(values);
  if (given.dtype == DType::u8) {
    Decode(given, format, to);
    return values;
  }
  if (given.dtype != DType::f32 || !given.is_contiguous() || given.size() != count) {
    throw Error(std::string(name) + " must be " + std::to_string(count) +
                " contiguous fp32 numbers or their packed codes, got " +
                std::to_string(given.size()) + " of " + ToString(given.dtype));
  }
  TensorView flat = View(given.data, DType::f32, count);
  Cast(flat, format, {}, to);
  const auto* from = static_cast<const float*>(given.data);
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] == from[i] || (values[i] != values[i] && from[i] != from[i])) continue;
    throw Error(std::string(name) + " must be numbers of " + ToString(format) + ", got " +
                std::to_string(from[i]) + " at " + std::to_string(i));
  }
  if (std::ranges::any_of(values, [](float s) { return s < 0; })) {
    throw Error(std::string(name) + " must not be negative");
  }
  return values;
}

/// Largest magnitudes from elsewhere.
Floats GivenLargest(const TensorView& given, std::int64_t count) {
  Floats values = Given(given, kFp32, count, "amax");
  for (float& a : values) a = std::abs(a);
  return values;
}

Outer OuterOf(const TensorView& x, const Scaled& scaled, int axis, const ScaledPlan& plan,
              const GivenScales& given) {
  Outer outer;
  const auto shape = ShapeOf(x);
  if (!scaled.tensor_scale) return outer;
  const BlockShape cells{.kind = scaled.outer};
  if (scaled.outer == BlockShape::Kind::row && x.rank > 0) {
    outer.extent = shape[axis];
    for (int d = axis + 1; d < x.rank; ++d) outer.after *= shape[d];
  }
  const BlockLayout layout = LayoutOf(cells, shape, axis);
  const auto count = static_cast<std::size_t>(layout.blocks());
  outer.scale.assign(count, 1);
  outer.encode.assign(count, 1);
  outer.largest.assign(count, 0);
  if (given.tensor != nullptr) {
    outer.scale = Given(*given.tensor, *scaled.tensor_scale, layout.blocks(), "tensor scales");
    return outer;
  }
  outer.largest = given.largest != nullptr ? GivenLargest(*given.largest, layout.blocks())
                                           : LargestOf(x, layout, plan.poisons);
  Kernels().outer_scales(plan, layout.blocks(), outer.largest.data(), outer.scale.data(),
                         outer.encode.data());
  return outer;
}

/// The second level above blocks first … first + count - 1.
void OuterAbove(const Job& job, std::int64_t first, std::int64_t count, Floats& scale,
                Floats& encode) {
  const auto n = static_cast<std::size_t>(count);
  if (job.outer.extent == 0) {
    scale.assign(n, job.outer.scale[0]);
    encode.assign(n, job.outer.encode[0]);
    return;
  }
  scale.resize(n);
  encode.resize(n);
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t cell = job.outer.cell(job.layout.first_of(first + b));
    scale[b] = job.outer.scale[cell];
    encode[b] = job.outer.encode[cell];
  }
}

void CheckLevels(const Scaled& scaled, const GivenScales& given) {
  if (given.largest != nullptr && (given.blocks != nullptr || given.tensor != nullptr)) {
    throw Error("give scales or amax, not both");
  }
  if (given.tensor != nullptr && !scaled.tensor_scale) {
    throw Error("tensor scales are for two levels; " + ToString(scaled) + " has one");
  }
  if (scaled.tensor_scale && given.blocks != nullptr && given.tensor == nullptr) {
    throw Error("the scales of two levels are a pair: the blocks' and the tensor's");
  }
}

Job JobOf(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
          const GivenScales& given, const TensorView* random) {
  const ScaledPlan plan =
      Guarded([&] { return make_scaled_plan(scaled, options, x.dtype == DType::bf16); });
  const auto shape = ShapeOf(x);
  Job job{.x = x,
          .options = options,
          .random = random,
          .plan = plan,
          .route = route_of(plan),
          .choose = scaled.choose,
          .layout = LayoutOf(scaled.block, shape, axis),
          .outer = OuterOf(x, scaled, axis, plan, given),
          .scale = {}};
  if (job.choose != ScaleChoice::none) {
    const RoundingOptions nearest{.overflow = options.overflow};
    job.nearest =
        Guarded([&] { return make_scaled_plan(scaled, nearest, x.dtype == DType::bf16); });
  }
  const std::int64_t blocks = job.layout.blocks();
  job.scale.resize(static_cast<std::size_t>(blocks));
  const bool large = job.layout.rows * job.layout.columns > kWhole;
  if (large && scaled.choose != ScaleChoice::none) {
    throw Error("choose is for blocks of at most " + std::to_string(kWhole) + " values");
  }
  Floats outer, encode;
  if (given.blocks != nullptr) {
    job.scale = Given(*given.blocks, scaled.scale, blocks, "scales");
  } else if (large || (given.largest != nullptr && !scaled.tensor_scale)) {
    job.decode = given.largest != nullptr ? GivenLargest(*given.largest, blocks)
                                          : LargestOf(x, job.layout, plan.poisons);
  } else {
    return job;
  }
  job.known = true;
  job.by.resize(job.scale.size());
  OuterAbove(job, 0, blocks, outer, encode);
  bool outside = false;
  if (given.blocks != nullptr) {
    outside = Kernels().given_scales(plan, job.route, blocks, job.scale.data(), outer.data(),
                                     job.by.data());
  } else {
    outside =
        Kernels().block_scales(plan, job.route, 1, blocks, job.decode.data(), outer.data(),
                               encode.data(), job.scale.data(), job.by.data(), job.decode.data());
  }
  job.decode = job.scale;
  if (outside && plan.arithmetic == Arithmetic::exact) job.route = ElementRoute::wide;
  return job;
}

// ---- elements -----------------------------------------------------------------------------------

/// What a strip's elements are below: a number for each block of it and, where a kernel's runs
/// cannot be blocks, for each element of a row.
struct Above {
  Floats largest, outer, encode, scale, by, decode;
  Floats all_by, all_decode, all_outer;
  ElementRoute route = ElementRoute::wide;
};

/// The random integers of strips: given, or made for their elements.
class StripIntegers {
 public:
  explicit StripIntegers(const Job& job) : job_(job) {
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
      made_.resize(static_cast<std::size_t>(before + count));
      Kernels().random_integers(job_.options.random_bits, job_.options.seed, job_.options.stream,
                                first - before, before + count, made_.data());
      std::copy_n(made_.data() + before, count, to);
    }
    return values_.data();
  }

 private:
  const Job& job_;
  std::optional<Reader<std::uint32_t>> given_;
  std::vector<std::uint32_t> values_, made_;
};

/// Goes through strips of x; what happens to their elements is the caller's.
class StripWalk {
 public:
  explicit StripWalk(Job& job) : job_(job), reader_(job.x, job.layout), integers_(job) {}

  /// Calls take(run, route, begin) for up to kStage columns of the strip at a time, of which
  /// `begin` is the first; all rows are in one run.
  template <class Take>
  void Visit(const Strip& strip, Take take) {
    if (strip.rows * strip.count == 0) return;
    const Rows rows = reader_.Read(strip);
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

  void FindScales(const Strip& strip, const Rows& rows) {
    const BlockLayout& layout = job_.layout;
    const std::int64_t first = layout.block(strip.p, strip.i, strip.t, strip.j);
    const std::int64_t count = (strip.count + layout.columns - 1) / layout.columns;
    const auto n = static_cast<std::size_t>(count);
    for (Floats* each : {&above_.largest, &above_.scale, &above_.by, &above_.decode}) {
      each->resize(n);
    }
    OuterAbove(job_, first, count, above_.outer, above_.encode);
    above_.route = job_.route;
    if (job_.known) {
      std::copy_n(job_.by.data() + first, count, above_.by.data());
      std::copy_n(job_.decode.data() + first, count, above_.decode.data());
      return;
    }
    LargestOf(layout, job_.plan.poisons, strip, rows, columns_, above_.largest.data());
    FormScales(above_, 1);
    if (job_.choose != ScaleChoice::none) ChooseScales(strip, rows);
    std::copy_n(above_.scale.data(), count, job_.scale.data() + first);
  }

  void FormScales(Above& above, double share) const {
    const bool outside = Kernels().block_scales(
        job_.plan, job_.route, share, static_cast<std::int64_t>(above.largest.size()),
        above.largest.data(), above.outer.data(), above.encode.data(), above.scale.data(),
        above.by.data(), above.decode.data());
    if (outside && job_.plan.arithmetic == Arithmetic::exact) above.route = ElementRoute::wide;
  }

  /// The other candidate, where it is better.
  void ChooseScales(const Strip& strip, const Rows& rows) {
    const std::vector<double> errors = ErrorsOf(strip, rows);
    const Above usual = above_;
    FormScales(above_, kOtherShare);
    const std::vector<double> others = ErrorsOf(strip, rows);
    for (std::size_t b = 0; b < errors.size(); ++b) {
      if (others[b] < errors[b]) continue;
      above_.scale[b] = usual.scale[b];
      above_.by[b] = usual.by[b];
      above_.decode[b] = usual.decode[b];
    }
    if (usual.route == ElementRoute::wide) above_.route = usual.route;
  }

  /// The errors of each of the strip's blocks, of elements rounded to nearest-even.
  std::vector<double> ErrorsOf(const Strip& strip, const Rows& rows) {
    const std::int64_t run = job_.layout.columns;
    Spread(run, strip.count);
    values_.resize(static_cast<std::size_t>(strip.rows * strip.count));
    const bool te = job_.plan.arithmetic == Arithmetic::te;
    ones_.assign(static_cast<std::size_t>(strip.count), 1);
    const ScaledRun all{.rows = strip.rows,
                        .n = strip.count,
                        .x = rows.at,
                        .x_stride = rows.stride,
                        .by = above_.all_by.data(),
                        .scale = te ? ones_.data() : above_.all_decode.data(),
                        .outer = te ? ones_.data() : above_.all_outer.data()};
    Kernels().round_blocks(job_.nearest, above_.route, all, values_.data(), strip.count, false);
    std::vector<double> errors;
    std::vector<double> of_rows(static_cast<std::size_t>(strip.rows));
    for (std::size_t b = 0; b < above_.scale.size(); ++b) {
      const std::int64_t begin = static_cast<std::int64_t>(b) * run;
      const std::int64_t n = std::min(run, strip.count - begin);
      const std::int64_t first = job_.layout.index(strip.p, strip.i, strip.t, strip.j + begin);
      const BelowScales at{above_.scale[b], above_.outer[b],
                           job_.outer.largest[job_.outer.cell(first)]};
      for (std::int64_t r = 0; r < strip.rows; ++r) {
        of_rows[r] = sum_of_errors(job_.plan, job_.choose == ScaleChoice::mse, n,
                                   values_.data() + r * strip.count + begin,
                                   rows.at + r * rows.stride + begin, at);
      }
      errors.push_back(sum_of_rows(job_.plan, strip.rows, of_rows.data()));
    }
    return errors;
  }

  /// Numbers of blocks for each of n elements of a row, blocks of `run`.
  void Spread(std::int64_t run, std::int64_t n) {
    const auto size = static_cast<std::size_t>(n);
    const auto spread = [&](const Floats& each, Floats& all) {
      all.resize(size);
      Kernels().spread(run, n, each.data(), all.data());
    };
    spread(above_.by, above_.all_by);
    spread(above_.decode, above_.all_decode);
    if (job_.plan.two_levels || above_.all_outer.size() < size) {
      spread(above_.outer, above_.all_outer);
    }
  }

  Job& job_;
  StripReader reader_;
  StripIntegers integers_;
  Above above_;
  Floats columns_, values_, ones_;
};

// ---- verbs --------------------------------------------------------------------------------------

void CheckInput(const TensorView& x, const char* name) {
  CheckFloat(x, name);
  if (x.dtype == DType::f64) {
    throw Error(std::string(name) + " must be fp32, bf16 or fp16 for scaled formats, got fp64");
  }
  if (x.device != Device::cpu) {
    throw Error("scaled formats are for tensors on the CPU, got one on a GPU");
  }
}

/// x, or its transform where the format has one, which this keeps.
class Inputs {
 public:
  Inputs(const TensorView& x, const Scaled& scaled, int axis) : view_(x) {
    if (!scaled.transform) return;
    kept_.resize(static_cast<std::size_t>(x.size()) * SizeOf(x.dtype));
    view_ = View(kept_.data(), x.dtype, ShapeOf(x));
    Transform(x, *scaled.transform, axis, false, view_);
  }
  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  std::vector<std::uint8_t> kept_;
};

/// `axis` of a tensor, any of one without dimensions.
int AxisOf(const TensorView& x, int axis) { return x.rank == 0 ? 0 : ResolveAxis(axis, x.rank); }

void CastJob(Job& job, const TensorView& out) {
  const Strips strips = job.strips();
  const bool streams = job.x.size() >= kStreamingFrom && job.x.data != out.data;
  ForStrips(strips, [&](std::int64_t begin, std::int64_t end) {
    StripWalk walk(job);
    Writer<float> writer(out);
    for (std::int64_t s = begin; s < end; ++s) {
      const Strip strip = strips[s];
      walk.Visit(strip, [&](ScaledRun run, ElementRoute route, std::int64_t c) {
        const BlockLayout& layout = job.layout;
        const std::int64_t first = layout.index(strip.p, strip.i, strip.t, strip.j + c);
        if (writer.is_direct()) {
          float* y = writer.Target(first, run.n);
          return Kernels().round_blocks(job.plan, route, run, y, layout.row_stride(), streams);
        }
        const ScaledRun all = run;
        run.rows = 1;
        for (std::int64_t r = 0; r < all.rows; ++r) {
          const std::int64_t at = first + r * layout.row_stride();
          run.x = all.x + r * all.x_stride;
          if (all.random != nullptr) run.random = all.random + r * all.n;
          Kernels().round_blocks(job.plan, route, run, writer.Target(at, run.n), 0, false);
          writer.Flush(at, run.n);
        }
      });
    }
  });
}

/// The least index of a NaN that has no code, of rows below scales that are none.
class NanFinder {
 public:
  explicit NanFinder(const Job& job) : job_(job), wanted_(!job.plan.element.has_nan) {}
  void Look(const ScaledRun& run, std::int64_t first) {
    if (!wanted_) return;
    for (std::int64_t r = 0; r < run.rows; ++r) {
      const float* x = run.x + r * run.x_stride;
      bool any = false;
      for (std::int64_t i = 0; i < run.n; ++i) any |= x[i] != x[i];
      for (std::int64_t i = 0; any && i < run.n; ++i) {
        if (x[i] != x[i] && run.scale[i] == run.scale[i]) {
          Found(first + r * job_.layout.row_stride() + i);
          break;
        }
      }
    }
  }
  void Throw(const Format& element) const {
    if (first_ == kNone) return;
    throw Error("element " + std::to_string(first_) + " is NaN, and " + ToString(element) +
                " has no code for NaN");
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  void Found(std::int64_t index) {
    std::int64_t least = first_;
    while (index < least && !first_.compare_exchange_weak(least, index)) {
    }
  }
  const Job& job_;
  bool wanted_;
  std::atomic<std::int64_t> first_{kNone};
};

/// ORs `count` bits of `from`, whose spare ones are 0, into `to` from bit number `begin` on. Bytes
/// at both ends may be other threads' too.
void PutBits(std::uint8_t* to, std::int64_t begin, const std::uint8_t* from, std::int64_t count) {
  const int shift = static_cast<int>(begin % 8);
  std::uint8_t* at = to + begin / 8;
  const std::int64_t last = (shift + count - 1) / 8;
  const std::int64_t given = (count + 7) / 8;
  for (std::int64_t i = 0; i <= last; ++i) {
    const int high = i < given ? from[i] << shift : 0;
    const int low = i > 0 ? from[i - 1] >> (8 - shift) : 0;
    const auto bits = static_cast<std::uint8_t>(high | low);
    if (i == 0 || i == last) {
      std::atomic_ref(at[i]).fetch_or(bits);
    } else {
      at[i] = bits;
    }
  }
}

void EncodeJob(Job& job, std::uint8_t* packed, NanFinder& nans) {
  const Strips strips = job.strips();
  const std::int64_t bits = job.plan.element.bits;
  const bool on_bytes = strips.on_bytes(bits);
  const bool streams = on_bytes && job.x.size() >= kStreamingFrom;
  if (!on_bytes) std::fill_n(packed, (job.x.size() * bits + 7) / 8, std::uint8_t{0});
  ForStrips(strips, [&](std::int64_t begin, std::int64_t end) {
    StripWalk walk(job);
    std::vector<std::uint8_t> row;
    for (std::int64_t s = begin; s < end; ++s) {
      const Strip strip = strips[s];
      walk.Visit(strip, [&](ScaledRun run, ElementRoute route, std::int64_t c) {
        std::int64_t first = job.layout.index(strip.p, strip.i, strip.t, strip.j + c);
        nans.Look(run, first);
        row.resize(static_cast<std::size_t>((run.n * bits + 7) / 8));
        for (std::int64_t r = 0; r < run.rows; ++r, first += job.layout.row_stride()) {
          if (on_bytes) {
            Kernels().encode_blocks(job.plan, route, run, packed + first * bits / 8, streams);
          } else {
            Kernels().encode_blocks(job.plan, route, run, row.data(), false);
            PutBits(packed, first * bits, row.data(), run.n * bits);
          }
          run.x += run.x_stride;
          if (run.random != nullptr) run.random += run.n;
        }
      });
    }
  });
}

/// Checks packed codes: u8, contiguous, of count codes.
void CheckCodes(const TensorView& codes, const Format& format, std::int64_t count,
                const char* name) {
  Check(codes, name);
  if (codes.dtype != DType::u8 || !codes.is_contiguous() ||
      codes.size() != PackedBytes(format, count)) {
    throw Error(std::string(name) + " must be " + std::to_string(PackedBytes(format, count)) +
                " contiguous bytes, of " + std::to_string(count) + " codes of " + ToString(format) +
                ", got " + std::to_string(codes.size()) + " of " + ToString(codes.dtype));
  }
}

void CheckScales(const Scaled& scaled, const ScaleCounts& counts, const TensorView& scales,
                 const TensorView* tensor_scales) {
  CheckCodes(scales, scaled.scale, counts.blocks, "scales");
  if ((tensor_scales != nullptr) != scaled.tensor_scale.has_value()) {
    throw Error(scaled.tensor_scale ? "two levels have tensor scales too"
                                    : "one level has no tensor scales");
  }
  if (tensor_scales != nullptr) {
    CheckCodes(*tensor_scales, *scaled.tensor_scale, counts.tensor, "tensor scales");
  }
}

void DecodeJob(Job& job, const TensorView& packed, const TensorView& out) {
  const Strips strips = job.strips();
  const std::int64_t bits = job.plan.element.bits;
  const auto* from = static_cast<const std::uint8_t*>(packed.data);
  ForStrips(strips, [&](std::int64_t begin, std::int64_t end) {
    StripWalk walk(job);
    Writer<float> writer(out);
    Floats elements;
    for (std::int64_t s = begin; s < end; ++s) {
      const Strip strip = strips[s];
      walk.VisitBelow(strip, [&](ScaledRun run, std::int64_t c) {
        std::int64_t first = job.layout.index(strip.p, strip.i, strip.t, strip.j + c);
        for (std::int64_t r = 0; r < run.rows; ++r, first += job.layout.row_stride()) {
          // Codes in front of the first in its byte are decoded too.
          const std::int64_t before = (first * bits % 8 != 0) ? first % 8 : 0;
          elements.resize(static_cast<std::size_t>(before + run.n));
          Kernels().decode_f32(job.plan.element, before + run.n, from + (first - before) * bits / 8,
                               elements.data(), false);
          run.x = elements.data() + before;
          Kernels().scale_blocks(job.plan.wide_values, run, writer.Target(first, run.n));
          writer.Flush(first, run.n);
        }
      });
    }
  });
}

}  // namespace

ScaleCounts CountScales(const Scaled& scaled, std::span<const std::int64_t> shape, int axis) {
  Check(scaled);
  const auto count = [&](const BlockShape& block) {
    std::int64_t n = 1;
    for (const std::int64_t extent : ScaleGrid(block, shape, axis)) n *= extent;
    return n;
  };
  return {count(scaled.block), scaled.tensor_scale ? count({.kind = scaled.outer}) : 0};
}

void Cast(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
          const TensorView& out, const GivenScales& given, const TensorView* random) {
  Check(scaled);
  CheckInput(x, "x");
  CheckInput(out, "out");
  CheckSameShape(x, out, "x and out");
  CheckRandom(random, x, options);
  const int along = AxisOf(x, axis);
  CheckLevels(scaled, given);
  if (x.size() == 0) return;
  const Inputs inputs(x, scaled, along);
  Job job = JobOf(inputs.view(), scaled, along, options, given, random);
  CastJob(job, out);
}

void Encode(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
            const TensorView& packed, const TensorView& scales, const TensorView* tensor_scales,
            const GivenScales& given, const TensorView* random) {
  Check(scaled);
  CheckInput(x, "x");
  CheckRandom(random, x, options);
  const int along = AxisOf(x, axis);
  CheckCodes(packed, scaled.element, x.size(), "packed");
  CheckScales(scaled, CountScales(scaled, ShapeOf(x), along), scales, tensor_scales);
  CheckLevels(scaled, given);
  Outer outer;
  Floats blocks;
  if (x.size() > 0) {
    const Inputs inputs(x, scaled, along);
    Job job = JobOf(inputs.view(), scaled, along, options, given, random);
    NanFinder nans(job);
    EncodeJob(job, static_cast<std::uint8_t*>(packed.data), nans);
    nans.Throw(scaled.element);
    outer = std::move(job.outer);
    blocks = std::move(job.scale);
  }
  const ScaleCounts counts = CountScales(scaled, ShapeOf(x), along);
  blocks.resize(static_cast<std::size_t>(counts.blocks));
  outer.scale.resize(static_cast<std::size_t>(counts.tensor));
  Encode(View(blocks), scaled.scale, {}, scales);
  if (tensor_scales == nullptr) return;
  Encode(View(outer.scale), *scaled.tensor_scale, {}, *tensor_scales);
}

void Decode(const TensorView& packed, const Scaled& scaled, int axis, const TensorView& scales,
            const TensorView* tensor_scales, const TensorView& out) {
  Check(scaled);
  CheckInput(out, "out");
  const int along = AxisOf(out, axis);
  CheckCodes(packed, scaled.element, out.size(), "packed");
  CheckScales(scaled, CountScales(scaled, ShapeOf(out), along), scales, tensor_scales);
  if (out.size() == 0) return;
  const GivenScales given{.blocks = &scales, .tensor = tensor_scales};
  const RoundingOptions options;
  Job job = JobOf(out, scaled, along, options, given, nullptr);
  DecodeJob(job, packed, out);
}

}  // namespace cpd
