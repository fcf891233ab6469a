// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/scaled.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cpd/ops/checks.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/hadamard.h"
#include "cpd/ops/scaled_job.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

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

void CastJob(ScaledJob& job, const TensorView& out) {
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
  explicit NanFinder(const Format& element) : wanted_(!element.has_nan()) {}
  /// In a run's first row. places: for run.n.
  void Look(const ScaledRun& run, std::int64_t first, std::uint32_t* places) {
    if (!wanted_) return;
    const std::int64_t nans =
        Kernels().find_large(0x7FFFFFFF, 0x7F800001, run.n, run.x, nullptr, nullptr, places);
    for (std::int64_t k = 0; k < nans; ++k) {
      const float scale = run.scale[places[k] / run.run];
      if (scale == scale) return Found(first + places[k]);
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

void EncodeJob(ScaledJob& job, std::uint8_t* packed, NanFinder& nans) {
  const Strips strips = job.strips();
  const std::int64_t bits = job.plan.element.bits;
  const bool on_bytes = strips.on_bytes(bits);
  const bool streams = on_bytes && job.x.size() >= kStreamingFrom;
  if (!on_bytes) std::fill_n(packed, (job.x.size() * bits + 7) / 8, std::uint8_t{0});
  ForStrips(strips, [&](std::int64_t begin, std::int64_t end) {
    StripWalk walk(job);
    std::vector<std::uint8_t> row;
    std::vector<std::uint32_t> places;
    for (std::int64_t s = begin; s < end; ++s) {
      const Strip strip = strips[s];
      walk.Visit(strip, [&](ScaledRun run, ElementRoute route, std::int64_t c) {
        std::int64_t first = job.layout.index(strip.p, strip.i, strip.t, strip.j + c);
        places.resize(static_cast<std::size_t>(run.n));
        row.resize(static_cast<std::size_t>((run.n * bits + 7) / 8));
        for (std::int64_t r = 0; r < run.rows; ++r, first += job.layout.row_stride()) {
          std::uint8_t* const to = on_bytes ? packed + first * bits / 8 : row.data();
          nans.Look(run, first, places.data());
          Kernels().encode_blocks(job.plan, route, run, to, streams);
          if (!on_bytes) PutBits(packed, first * bits, row.data(), run.n * bits);
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

void DecodeJob(ScaledJob& job, const TensorView& packed, const TensorView& out) {
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
  ScaledJob job = JobOf(inputs.view(), scaled, along, options, given, random);
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
  const ScaleCounts counts = CountScales(scaled, ShapeOf(x), along);
  CheckScales(scaled, counts, scales, tensor_scales);
  CheckLevels(scaled, given);
  OuterScales outer;
  Floats blocks;
  if (x.size() > 0) {
    const Inputs inputs(x, scaled, along);
    ScaledJob job = JobOf(inputs.view(), scaled, along, options, given, random);
    NanFinder nans(scaled.element);
    EncodeJob(job, static_cast<std::uint8_t*>(packed.data), nans);
    nans.Throw(scaled.element);
    outer = std::move(job.outer);
    blocks = std::move(job.scale);
  }
  blocks.resize(static_cast<std::size_t>(counts.blocks));
  Encode(View(blocks), scaled.scale, {}, scales);
  if (tensor_scales == nullptr) return;
  outer.scale.resize(static_cast<std::size_t>(counts.tensor), 1);
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
  ScaledJob job = JobOf(out, scaled, along, options, given, nullptr);
  DecodeJob(job, packed, out);
}

}  // namespace cpd
