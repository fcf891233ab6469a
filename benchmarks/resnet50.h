// SPDX-License-Identifier: Apache-2.0
//
// The parameter tensors of ResNet-50 (He et al. 2016, Table 1; batch norm with weight and bias;
// 1000 classes) in the order of the network. Training reduces the gradients of these tensors in
// every step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace resnet50 {

constexpr std::size_t kLayers = 161;
constexpr std::int64_t kValues = 25'557'032;

/// A tensor: its number of values, and the number of values in a row. A row has the weights of one
/// output; a vector is one row.
struct Tensor {
  std::int64_t size = 0, row = 0;
};

constexpr std::array<Tensor, kLayers> Tensors() {
  std::array<Tensor, kLayers> tensors{};
  std::size_t next = 0;
  const auto convolution = [&](std::int64_t in, std::int64_t out, std::int64_t kernel) {
    tensors.at(next++) = {out * in * kernel * kernel, in * kernel * kernel};
    tensors.at(next++) = {out, out};  // batch norm's weight
    tensors.at(next++) = {out, out};  // and bias
  };
  convolution(3, 64, 7);
  constexpr std::array<int, 4> kBlocks{3, 4, 6, 3};
  std::int64_t in = 64;
  std::int64_t width = 64;
  for (const int blocks : kBlocks) {
    for (int block = 0; block < blocks; ++block) {
      convolution(in, width, 1);
      convolution(width, width, 3);
      convolution(width, 4 * width, 1);
      if (block == 0) convolution(in, 4 * width, 1);  // the shortcut
      in = 4 * width;
    }
    width *= 2;
  }
  tensors.at(next++) = {in * 1000, in};
  tensors.at(next++) = {1000, 1000};
  return tensors;
}
constexpr std::size_t kLastLayer = 2;  // tensors of the classifier, the last ones

constexpr std::int64_t Sum(const std::array<Tensor, kLayers>& tensors) {
  std::int64_t sum = 0;
  for (const Tensor& tensor : tensors) sum += tensor.size;
  return sum;
}
static_assert(Tensors().back().size == 1000 && Sum(Tensors()) == kValues);

}  // namespace resnet50
