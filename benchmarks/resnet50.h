// SPDX-License-Identifier: Apache-2.0
//
// The parameter tensors of ResNet-50 (He et al. 2016, Table 1; batch norm with weight and bias,
// 1000 classes), in the order of the network: what its training reduces at every step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace resnet50 {

constexpr std::size_t kLayers = 161;
constexpr std::int64_t kValues = 25'557'032;

/// Values of each tensor.
constexpr std::array<std::int64_t, kLayers> Sizes() {
  std::array<std::int64_t, kLayers> sizes{};
  std::size_t next = 0;
  const auto convolution = [&](std::int64_t in, std::int64_t out, std::int64_t kernel) {
    sizes.at(next++) = out * in * kernel * kernel;
    sizes.at(next++) = out;  // batch norm's weight
    sizes.at(next++) = out;  // and bias
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
  sizes.at(next++) = in * 1000;
  sizes.at(next++) = 1000;
  return sizes;
}

constexpr std::int64_t Sum(const std::array<std::int64_t, kLayers>& sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t n : sizes) sum += n;
  return sum;
}
static_assert(Sizes().back() == 1000 && Sum(Sizes()) == kValues);

}  // namespace resnet50
