// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/arguments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/ops/checks.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

void CheckLayer(const char* name, std::size_t l, const TensorView& x, const TensorView& first) {
  const bool elsewhere = x.size() > 0 && !IsTogether(x, first);
  if (x.dtype == DType::f32 && x.is_contiguous() && !elsewhere) return;
  throw Error(std::string(name) + "[" + std::to_string(l) + "] must be contiguous fp32 " +
              PlaceOf(first) + ", got " + ToString(x.dtype) + (elsewhere ? " " + PlaceOf(x) : "") +
              (x.is_contiguous() ? "" : ", not contiguous"));
}

}  // namespace

TensorView FirstLayer(std::span<const TensorView> x) {
  const auto found =
      std::ranges::find_if(x, [](const TensorView& view) { return view.size() > 0; });
  return found == x.end() ? TensorView{} : *found;
}

void CheckLayers(const char* name, std::span<const TensorView> layers, const TensorView& first) {
  for (const TensorView& layer : layers) Check(layer, name);
  for (std::size_t l = 0; l < layers.size(); ++l) CheckLayer(name, l, layers[l], first);
}

void CheckOverlap(std::span<const TensorView> x, std::span<const TensorView> out) {
  struct Range {
    const std::uint8_t* begin;
    const std::uint8_t* end;
    std::size_t layer;
  };
  const auto range = [](const TensorView& view, std::size_t layer) {
    const auto* begin = static_cast<const std::uint8_t*>(view.data);
    return Range{begin, begin + view.size() * 4, layer};
  };
  std::vector<Range> taken;
  for (std::size_t l = 0; l < out.size(); ++l) {
    if (out[l].size() > 0) taken.push_back(range(out[l], l));
  }
  std::ranges::sort(taken, {}, &Range::begin);
  for (std::size_t i = 1; i < taken.size(); ++i) {
    if (taken[i].begin >= taken[i - 1].end) continue;
    throw Error("out[" + std::to_string(taken[i - 1].layer) + "] and out[" +
                std::to_string(taken[i].layer) + "] overlap");
  }
  for (std::size_t l = 0; l < x.size(); ++l) {
    const Range given = range(x[l], l);
    auto first = std::ranges::upper_bound(taken, given.begin, {}, &Range::begin);
    if (first != taken.begin() && std::prev(first)->end > given.begin) --first;
    for (; given.begin < given.end && first != taken.end() && first->begin < given.end; ++first) {
      if (first->layer == l && first->begin == given.begin) continue;
      throw Error("out[" + std::to_string(first->layer) + "] overlaps x[" + std::to_string(l) +
                  "]; it may be x[" + std::to_string(first->layer) + "] itself, or lie apart");
    }
  }
}

}  // namespace cpd
