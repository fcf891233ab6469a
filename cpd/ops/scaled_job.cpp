// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/scaled_job.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "cpd/base/guarded.h"
#include "cpd/base/parallel.h"
#include "cpd/numeric/scaled/scaled_choice.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Elements of a block up to which its scale and its values are formed in one go, within the L2
/// cache.
constexpr std::int64_t kWhole = std::int64_t{1} << 17;

/// Neighbours whose largest magnitude a kernel finds without asking for memory ahead, as the pass
/// over the elements of the strip before has.
constexpr std::int64_t kPart = 128;

/// The largest |x| of each of a strip's blocks.
void LargestOf(const BlockLayout& layout, bool with_nan, const Strip& strip, const StripRows& rows,
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

OuterScales OuterOf(const TensorView& x, const Scaled& scaled, int axis, const ScaledPlan& plan,
                    const GivenScales& given) {
  OuterScales outer;
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
void OuterAbove(const ScaledJob& job, std::int64_t first, std::int64_t count, Floats& scale,
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

}  // namespace

void ForStrips(const Strips& strips, const std::function<void(std::int64_t, std::int64_t)>& body) {
  parallel_for(strips.size(), 1, kSerialBelow / strips.elements(), body);
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

ScaledJob JobOf(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
                const GivenScales& given, const TensorView* random) {
  const ScaledPlan plan =
      Guarded([&] { return make_scaled_plan(scaled, options, x.dtype == DType::bf16); });
  const auto shape = ShapeOf(x);
  ScaledJob job{.x = x,
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

void StripWalk::FindScales(const Strip& strip, const StripRows& rows) {
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
  LargestOfBlocks(layout, strip, rows);
  FormScales(above_, 1);
  if (job_.choose != ScaleChoice::none) ChooseScales(strip, rows);
  std::copy_n(above_.scale.data(), count, job_.scale.data() + first);
}

void StripWalk::LargestOfBlocks(const BlockLayout& layout, const Strip& strip,
                                const StripRows& rows) {
  float* const largest = above_.largest.data();
  const bool poisons = job_.plan.poisons;
  const std::int64_t run = std::min(layout.columns, strip.count);
  if (strip.rows > 1 || run <= kPart || run % kPart != 0 || strip.count % run != 0) {
    return LargestOf(layout, poisons, strip, rows, columns_, largest);
  }
  columns_.resize(static_cast<std::size_t>(strip.count / kPart));
  Kernels().block_max(poisons, kPart, strip.count, rows.at, columns_.data());
  Kernels().block_max(true, run / kPart, strip.count / kPart, columns_.data(), largest);
}

void StripWalk::FormScales(StripScales& above, double share) const {
  const bool outside = Kernels().block_scales(
      job_.plan, job_.route, share, static_cast<std::int64_t>(above.largest.size()),
      above.largest.data(), above.outer.data(), above.encode.data(), above.scale.data(),
      above.by.data(), above.decode.data());
  if (outside && job_.plan.arithmetic == Arithmetic::exact) above.route = ElementRoute::wide;
}

void StripWalk::ChooseScales(const Strip& strip, const StripRows& rows) {
  const std::vector<double> errors = ErrorsOf(strip, rows);
  const StripScales usual = above_;
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

std::vector<double> StripWalk::ErrorsOf(const Strip& strip, const StripRows& rows) {
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

void StripWalk::Spread(std::int64_t run, std::int64_t n) {
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

}  // namespace cpd
