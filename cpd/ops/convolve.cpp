// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/convolve.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/base/guarded.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/base/product.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/product.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Of = ImageOperand::Batch;

// --- checks --------------------------------------------------------------------------------------

void CheckType(const TensorView& x, const char* name) {
  Check(x, name);
  if (!IsFloat(x.dtype) || x.dtype == DType::f64) {
    throw Error(std::string(name) + " must be fp32, bf16 or fp16, got " + ToString(x.dtype));
  }
  Check(OnCpuAlone::convolutions, x);
}

/// Throws Error unless x's shape is `shape`, followed by the member `along` of each axis of the
/// windows (the number of windows or of kernel elements). If `along` is null, x's shape must be
/// `shape`.
void CheckShape(const TensorView& x, const char* name, std::vector<std::int64_t> shape,
                const Windows& windows, std::int64_t WindowAxis::* along) {
  for (int d = 0; along != nullptr && d < windows.rank; ++d) {
    shape.push_back(windows.axes[static_cast<std::size_t>(d)].*along);
  }
  bool fits = static_cast<std::size_t>(x.rank) == shape.size();
  for (std::size_t d = 0; fits && d < shape.size(); ++d) fits = x.shape[d] == shape[d];
  if (fits) return;
  std::string text;
  for (const std::int64_t n : shape) text += (text.empty() ? "" : " x ") + std::to_string(n);
  throw Error(std::string(name) + " must be " + text);
}

void CheckImage(const TensorView& x, std::int64_t groups, const Windows& windows) {
  CheckType(x, "x");
  if (windows.rank < 1 || windows.rank > Windows::kMaxRank || x.rank != windows.rank + 2) {
    throw Error("images must have 1…" + std::to_string(Windows::kMaxRank) +
                " dimensions in addition to two, and windows along each, got " +
                std::to_string(x.rank) + " and " + std::to_string(windows.rank));
  }
  if (groups < 1 || x.shape[1] % groups != 0) {
    throw Error("groups must divide x's channels, got " + std::to_string(groups) + " and " +
                std::to_string(x.shape[1]));
  }
  for (int d = 0; d < windows.rank; ++d) {
    const WindowAxis& axis = windows.axes[static_cast<std::size_t>(d)];
    if (axis.step >= 1 && axis.dilation >= 1 && axis.spread >= 1) continue;
    throw Error("step, dilation and spread of windows must be at least 1");
  }
}

void CheckSums(const Accumulator& accumulator, const TensorView& out, std::int64_t depth,
               const RandomKey& key) {
  Check(accumulator);
  CheckStorage(out.dtype, accumulator.format);
  CheckNumbers(accumulator, out, depth, key, nullptr, 0);
}

/// Checks the image of a convolution that is computed as `batch` matrix products. `matrices` reads
/// the image as one matrix, of `rows` rows and `columns` columns, for each product. Throws Error if
/// a matrix contains an element that is not a value of `format`. The error gives the element's
/// index in the matrices, counted in row-major order from the first matrix on. Elements of the
/// image that are in none of the matrices are not checked.
void CheckUnitImage(const TensorView& image, const ImageOperand& matrices, std::int64_t batch,
                    std::int64_t rows, std::int64_t columns, const Format& format,
                    const char* name) {
  if (FindOutside(image, format).element < 0) return;
  ImageBuffer buffer;
  for (std::int64_t line = 0; line < batch * rows; ++line) {
    const TensorView row = matrices.Read(line / rows, line % rows, 1, 0, columns, buffer);
    Outside found = FindOutside(row, format);
    if (found.element < 0) continue;
    found.element += line * columns;
    ThrowOutside(found, format, name);
  }
}

// --- the product ---------------------------------------------------------------------------------

/// The weights as matrices: groups x outputs x terms, contiguous.
class Matrices {
 public:
  explicit Matrices(const TensorView& w) {
    operand.data = w.data;
    operand.dtype = w.dtype;
    const std::int64_t lines = w.shape[0] * w.shape[1];
    terms = lines == 0 ? 0 : w.size() / lines;
    operand.row_stride = terms;
    operand.column_stride = 1;
    group_stride = w.shape[1] * terms;
    if (w.is_contiguous() || Explains()) return;
    TensorView merged = w;
    TensorView* const views[] = {&merged};
    MergeDimensions(views);
    const std::size_t size = SizeOf(w.dtype);
    memory_ =
        std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(w.size()) * size);
    parallel_for(w.size(), kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
      Gather(merged, begin, end - begin, memory_.get() + static_cast<std::size_t>(begin) * size);
    });
    operand.data = memory_.get();
  }

  ProductOperand operand;
  std::int64_t terms = 0, group_stride = 0;

 private:
  std::unique_ptr<std::uint8_t[]> memory_;
};

/// Returns windows of one element each, one for every element of the image.
Windows Elements(const TensorView& image) {
  Windows windows;
  windows.rank = image.rank - 2;
  for (std::size_t d = 0; d < static_cast<std::size_t>(windows.rank); ++d) {
    windows.axes[d].places = image.shape[d + 2];
  }
  return windows;
}

/// Computes Convolve with all products, also the products by zeros between elements. Chunks end at
/// `chunk_ends` (ProductImages).
void RunWindows(const TensorView& x, const TensorView& w, const TensorView* c,
                const Windows& windows, const Accumulator& accumulator, const TensorView& out,
                const RandomKey& key, std::span<const std::int64_t> chunk_ends) {
  if (out.size() == 0) return;
  const std::int64_t groups = w.shape[0];
  // The random bits of stochastic rounding depend on an element's row-major index in `out`, which
  // has all groups of an image before the next image. So a stochastic convolution is one matrix
  // product for each image and group. Otherwise one product for each group covers the windows of
  // all images.
  const bool numbered = accumulator.rounding.mode == Rounding::stochastic;
  const Of batch = numbered ? Of::images_and_groups : Of::groups;
  const Matrices matrices(w);
  MatrixProduct product;
  product.rows = w.shape[1];
  product.columns = windows.places() * (numbered ? 1 : x.shape[0]);
  product.depth = matrices.terms;
  product.batch_rank = numbered ? 2 : 1;
  product.batch_shape = {numbered ? x.shape[0] : groups, groups};
  product.a = matrices.operand;
  if (c != nullptr) {
    product.c.data = c->data;
    product.c.dtype = c->dtype;
    product.c.row_stride = c->stride[1];
  }
  const std::size_t of_groups = numbered ? 1 : 0;
  product.a.batch_stride[of_groups] = matrices.group_stride;
  product.c.batch_stride[of_groups] = c == nullptr ? 0 : c->stride[0];
  const ImageOperand columns(x, groups, windows, batch, ImageOperand::Rows::terms);
  const ImageOperand results(out, groups, Elements(out), batch, ImageOperand::Rows::terms);
  const ProductImages images{nullptr, &columns, &results, chunk_ends};
  QueueProduct({product, AccumulatorPlanOf(accumulator, product.depth, key), {}, {}, &images}, out);
}

// --- zeros between elements ----------------------------------------------------------------------

bool HoldsZeros(const Format& format) { return format.is_signed && format.has_zero(); }

/// Returns whether is(element) is true for any element of the tensor.
template <class Is>
bool HasAny(const TensorView& x, Is is) {
  std::atomic<bool> has{false};
  parallel_for(x.size(), kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<float> reader(x);
    bool any = false;
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      const float* values = reader.Read(i, n);
      for (std::int64_t j = 0; j < n; ++j) any = any || is(values[j]);
    }
    if (any) has = true;
  });
  return has;
}

bool AllFinite(const TensorView& x) {
  return !HasAny(x, [](float value) { return !std::isfinite(value); });
}

bool HasNegativeZero(const TensorView& x) {
  return HasAny(x, [](float value) { return std::bit_cast<std::uint32_t>(value) == 0x80000000U; });
}

/// Returns whether products by +0 may change a sum, other than from -0 to +0.
///
/// They change no other sum under three conditions: weights are finite, each rounding is to
/// nearest-even and into a format with signed zeros, and terms are added one by one. Then s + 0 = s
/// unless s is -0. A sum that is -0 without the products by +0 may be +0 with them. All other sums,
/// including sums of chunks, are equal. Integer sums have no -0.
bool ZerosMatter(const Accumulator& accumulator, const TensorView& w) {
  const Format format = accumulator.format;
  const bool in_order =
      accumulator.scheme == Scheme::sequential || accumulator.scheme == Scheme::chunked;
  const bool draws = accumulator.rounding.mode == Rounding::stochastic;
  const bool adds_nothing =
      (accumulator.scheme == Scheme::fixed && !draws) ||
      (in_order && accumulator.rounding.mode == Rounding::nearest_even && HoldsZeros(format) &&
       HoldsZeros(accumulator.product.value_or(format)) &&
       HoldsZeros(accumulator.inner.value_or(format)));
  return !adds_nothing || !AllFinite(w);
}

/// The windows with the indices first, first + spread, first + 2 spread, … along one axis. Their
/// kernel has only the elements that meet elements of the image. Kernel elements that meet zeros
/// between elements are left out.
struct Residue {
  std::int64_t first = 0, first_tap = 0, tap_step = 1;
  WindowAxis axis;
};

Residue ResidueOf(const WindowAxis& axis, std::int64_t first) {
  Residue residue;
  residue.first = first;
  residue.tap_step = axis.spread / std::gcd(axis.spread, axis.dilation);
  const auto position = [&](std::int64_t tap) { return first + tap * axis.dilation - axis.before; };
  while (residue.first_tap < residue.tap_step && position(residue.first_tap) % axis.spread != 0) {
    ++residue.first_tap;
  }
  const std::int64_t left = axis.kernel - residue.first_tap;
  const bool meets = residue.first_tap < residue.tap_step && left > 0;
  residue.axis.kernel = meets ? (left + residue.tap_step - 1) / residue.tap_step : 0;
  residue.axis.places =
      std::max<std::int64_t>(0, (axis.places - first + axis.spread - 1)) / axis.spread;
  if (!meets) {
    residue.first_tap = 0;
    return residue;
  }
  residue.axis.dilation = residue.tap_step * axis.dilation / axis.spread;
  residue.axis.before = -position(residue.first_tap) / axis.spread;
  return residue;
}

/// Restricts x along a dimension to `count` elements: first, first + step, …
void Thin(TensorView& x, int dimension, std::int64_t first, std::int64_t step, std::int64_t count) {
  const auto at = static_cast<std::size_t>(dimension);
  x.data = static_cast<std::uint8_t*>(x.data) +
           first * x.stride[at] * static_cast<std::int64_t>(SizeOf(x.dtype));
  x.stride[at] *= step;
  x.shape[at] = count;
}

/// Returns the ends of chunks. A chunk has `chunk` terms, including the products that are skipped.
/// The end of a chunk is the number of products that are computed (not skipped) up to that end.
std::vector<std::int64_t> ChunkEnds(const Windows& windows, std::span<const Residue> residues,
                                    std::int64_t channels, std::int64_t chunk) {
  std::vector<std::int64_t> taps{0};
  for (std::size_t d = 0; d < residues.size(); ++d) {
    std::vector<std::int64_t> wider;
    for (const std::int64_t tap : taps) {
      for (std::int64_t i = 0; i < residues[d].axis.kernel; ++i) {
        wider.push_back(tap * windows.axes[d].kernel + residues[d].first_tap +
                        i * residues[d].tap_step);
      }
    }
    taps = wider;
  }
  const std::int64_t depth = channels * windows.taps();
  std::vector<std::int64_t> ends(static_cast<std::size_t>((depth + chunk - 1) / chunk));
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (const std::int64_t tap : taps) {
      ++ends[static_cast<std::size_t>((channel * windows.taps() + tap) / chunk)];
    }
  }
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  return ends;
}

/// Computes Convolve of a dilated image without the products by the zeros between its elements.
/// Windows with equal index modulo the spread (the distance of the image's elements) form one
/// matrix product. Returns false if a result is -0, because with the products by zeros it might be
/// +0.
bool RunResidues(const TensorView& x, const TensorView& w, const TensorView* c,
                 const Windows& windows, const Accumulator& accumulator, const TensorView& out) {
  std::int64_t combinations = 1;
  for (int d = 0; d < windows.rank; ++d) {
    combinations *= windows.axes[static_cast<std::size_t>(d)].spread;
  }
  const auto rank = static_cast<std::size_t>(windows.rank);
  for (std::int64_t number = 0; number < combinations; ++number) {
    std::array<Residue, Windows::kMaxRank> residues;
    Windows thinned = windows;
    TensorView weights = w;
    TensorView results = out;
    std::int64_t rest = number;
    for (std::size_t d = 0; d < rank; ++d) {
      const WindowAxis& axis = windows.axes[d];
      const Residue residue = ResidueOf(axis, rest % axis.spread);
      rest /= axis.spread;
      Thin(weights, static_cast<int>(d) + 3, residue.first_tap, residue.tap_step,
           residue.axis.kernel);
      Thin(results, static_cast<int>(d) + 2, residue.first, axis.spread, residue.axis.places);
      thinned.axes[d] = residue.axis;
      residues[d] = residue;
    }
    const bool chunked = accumulator.scheme == Scheme::chunked;
    const auto ends =
        chunked ? ChunkEnds(windows, std::span(residues).first(rank), w.shape[2], accumulator.chunk)
                : std::vector<std::int64_t>{};
    RunWindows(x, weights, c, thinned, accumulator, results, {}, ends);  // no rounding draws
    if (HasNegativeZero(results)) return false;
  }
  return true;
}

bool IsSpread(const Windows& windows) {
  const auto end = windows.axes.begin() + windows.rank;
  const auto steps = [](const WindowAxis& axis) { return axis.step != 1; };
  const auto spreads = [](const WindowAxis& axis) { return axis.spread != 1; };
  return std::none_of(windows.axes.begin(), end, steps) &&
         std::any_of(windows.axes.begin(), end, spreads);
}

}  // namespace

void Convolve(const TensorView& x, const TensorView& w, const TensorView* c, const Windows& windows,
              const Accumulator& accumulator, const TensorView& out, const RandomKey& key) {
  CheckType(w, "w");
  const std::int64_t groups = w.rank > 1 ? w.shape[0] : 0;
  CheckImage(x, groups, windows);
  CheckShape(w, "w", {groups, w.shape[1], x.shape[1] / groups}, windows, &WindowAxis::kernel);
  CheckType(out, "out");
  CheckShape(out, "out", {x.shape[0], groups * w.shape[1]}, windows, &WindowAxis::places);
  if (c != nullptr) {
    CheckType(*c, "c");
    CheckShape(*c, "c", {groups, w.shape[1]}, {}, nullptr);
  }
  const std::int64_t terms = w.shape[2] * windows.taps();
  CheckSums(accumulator, out, terms, key);
  if (out.size() == 0) return;
  if (accumulator.unit) {
    Guarded([&] {
      CheckUnitOperand(w, accumulator.unit->a, "a");
      const ImageOperand columns(x, groups, windows, Of::images_and_groups,
                                 ImageOperand::Rows::terms);
      CheckUnitImage(x, columns, x.shape[0] * groups, terms, windows.places(), accumulator.unit->b,
                     "b");
    });
  }
  NotePathOfProduct("convolve", accumulator, terms, false, out);
  if (Explains()) return RunWindows(x, w, c, windows, accumulator, out, key, {});
  const bool short_cut = IsSpread(windows) && !ZerosMatter(accumulator, w);
  if (short_cut && RunResidues(x, w, c, windows, accumulator, out)) return;
  RunWindows(x, w, c, windows, accumulator, out, key, {});
}

void Correlate(const TensorView& g, const TensorView& x, std::int64_t groups,
               const Windows& windows, const Accumulator& accumulator, const TensorView& out,
               const RandomKey& key) {
  CheckImage(x, groups, windows);
  CheckType(g, "g");
  CheckType(out, "out");
  const std::int64_t outputs = g.rank > 1 ? g.shape[1] : 0;
  CheckShape(g, "g", {x.shape[0], outputs / groups * groups}, windows, &WindowAxis::places);
  CheckShape(out, "out", {outputs, x.shape[1] / groups}, windows, &WindowAxis::kernel);
  if (!out.is_contiguous()) throw Error("out of a correlation must be contiguous");
  const ImageOperand a(g, groups, Elements(g), Of::groups, ImageOperand::Rows::terms);
  const ImageOperand b(x, groups, windows, Of::groups, ImageOperand::Rows::windows);
  MatrixProduct product;
  product.rows = outputs / groups;
  product.columns = x.shape[1] / groups * windows.taps();
  product.depth = x.shape[0] * windows.places();
  CheckSums(accumulator, out, product.depth, key);
  NotePathOfProduct("correlate", accumulator, product.depth, false, out);
  if (out.size() == 0) return;
  if (accumulator.unit) {
    Guarded([&] {
      CheckUnitImage(g, a, groups, product.rows, product.depth, accumulator.unit->a, "a");
      CheckUnitImage(x, b, groups, product.depth, product.columns, accumulator.unit->b, "b");
    });
  }
  product.batch_rank = 1;
  product.batch_shape = {groups};
  product.out.data = out.data;
  product.out.dtype = out.dtype;
  product.out.row_stride = product.columns;
  product.out.column_stride = 1;
  product.out.batch_stride = {product.rows * product.columns};
  const ProductImages images{&a, &b, nullptr, {}};
  QueueProduct({product, AccumulatorPlanOf(accumulator, product.depth, key), {}, {}, &images}, out);
}

}  // namespace cpd
