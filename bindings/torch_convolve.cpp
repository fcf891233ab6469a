// SPDX-License-Identifier: Apache-2.0
//
// The operators of convolutions on the CPU: torch.ops.cpd.convolve and correlate (ops/convolve.h).
// A list argument has one number for each spatial dimension of the image.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpd/ops/convolve.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/error.h"
#include "torch_call.h"

namespace cpd {
namespace {

using Ints = std::vector<std::int64_t>;

/// Sets one member of every axis of `windows`, such as the step (stride). `of` has the value for
/// each axis.
void SetAxes(Windows& windows, std::int64_t WindowAxis::* field, std::span<const std::int64_t> of) {
  if (static_cast<std::size_t>(windows.rank) != of.size()) {
    throw Error("windows need " + std::to_string(windows.rank) +
                " numbers, one for each dimension of the image, got " + std::to_string(of.size()));
  }
  for (std::size_t d = 0; d < of.size(); ++d) windows.axes[d].*field = of[d];
}

/// Returns the windows (positions of a kernel) for images x. Sets the number of axes, and the
/// steps, dilations and paddings before the image; the caller sets the other members.
Windows WindowsOf(const Tensor& x, const Ints& step, const Ints& dilation, const Ints& before) {
  const std::int64_t rank = x.dim() - 2;
  if (rank < 1 || rank > Windows::kMaxRank) {
    throw Error("images must have 1…" + std::to_string(Windows::kMaxRank) +
                " dimensions in addition to two, got " + std::to_string(rank));
  }
  Windows windows;
  windows.rank = static_cast<int>(rank);
  SetAxes(windows, &WindowAxis::step, step);
  SetAxes(windows, &WindowAxis::dilation, dilation);
  SetAxes(windows, &WindowAxis::before, before);
  return windows;
}

/// Returns the view of w with the spatial dimensions of the kernel (the fourth dimension and later
/// ones) reversed.
TensorView Turned(TensorView w) {
  for (int d = 3; d < w.rank; ++d) {
    const std::int64_t last = std::max<std::int64_t>(w.shape[d] - 1, 0) * w.stride[d];
    w.data = static_cast<std::byte*>(w.data) + last * static_cast<std::int64_t>(SizeOf(w.dtype));
    w.stride[d] = -w.stride[d];
  }
  return w;
}

/// Returns the convolution of x with w. The shape of w is groups x outputs x channels x kernel
/// dimensions; `turned`: the kernel dimensions are in reverse order. The shape of c is groups x
/// outputs.
Tensor ConvolveNew(const Tensor& x, const Tensor& w, bool turned, const OptionalTensor& c,
                   const Ints& step, const Ints& dilation, const Ints& before, const Ints& spread,
                   const Ints& places, const SumBy& by, ScalarType dtype) {
  Windows windows = WindowsOf(x, step, dilation, before);
  SetAxes(windows, &WindowAxis::spread, spread);
  SetAxes(windows, &WindowAxis::places, places);
  const auto kernel = SizesOf(w);
  if (kernel.size() < 3) {
    throw Error("w must be groups x outputs x channels x a kernel, got " +
                std::to_string(kernel.size()) + " dimensions");
  }
  SetAxes(windows, &WindowAxis::kernel, kernel.subspan(3));
  Ints shape{x.size(0), w.size(0) * w.size(1)};
  shape.insert(shape.end(), places.begin(), places.end());
  const Tensor out = Empty(x, shape, dtype);
  const auto [how, key] = by.On(x);
  Convolve(Input(x), turned ? Turned(Input(w)) : Input(w), Input(c), windows, how, Output(out),
           key);
  return out;
}

/// Returns the correlation of g with x (ops/convolve.h). `kernel` holds the kernel's sizes along
/// the spatial dimensions. The sizes of g's spatial dimensions are the numbers of window positions.
Tensor CorrelateNew(const Tensor& g, const Tensor& x, std::int64_t groups, const Ints& kernel,
                    const Ints& step, const Ints& dilation, const Ints& before, const SumBy& by,
                    ScalarType dtype) {
  Windows windows = WindowsOf(x, step, dilation, before);
  SetAxes(windows, &WindowAxis::kernel, kernel);
  if (g.dim() < 2) {
    throw Error("g must be images x outputs x places, got " + std::to_string(g.dim()) +
                " dimensions");
  }
  SetAxes(windows, &WindowAxis::places, SizesOf(g).subspan(2));
  if (groups < 1) throw Error("groups must be at least 1, got " + std::to_string(groups));
  Ints shape{g.size(1), x.size(1) / groups};
  shape.insert(shape.end(), kernel.begin(), kernel.end());
  const Tensor out = Empty(x, shape, dtype);
  const auto [how, key] = by.On(x);
  Correlate(Input(g), Input(x), groups, windows, how, Output(out), key);
  return out;
}

}  // namespace

TorchOperators ConvolutionOperators() {
  const std::string by = std::string(SumBy::kSchema) + ", ScalarType dtype";
  const std::string windows = "int[] step, int[] dilation, int[] before, ";
  return {
      Row<ConvolveNew>("convolve",
                       "Tensor x, Tensor w, bool turned, Tensor? c, " + windows +
                           "int[] spread, int[] places, " + by,
                       Has::cpu_only),
      Row<CorrelateNew>("correlate",
                        "Tensor g, Tensor x, int groups, int[] kernel, " + windows + by,
                        Has::cpu_only),
  };
}

}  // namespace cpd
