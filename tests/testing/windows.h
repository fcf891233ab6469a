// SPDX-License-Identifier: Apache-2.0
//
// Computes windows on images by their definition, element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "cpd/backend/cpu/image_operand.h"
#include "tests/testing/gemm.h"

namespace cpd::testing {

/// Returns a random integer from low to high, both included.
inline std::int64_t one_of(std::mt19937& draw, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(high - low + 1));
}

/// Returns random windows of a convolution along `rank` axes. If `spread` is true, zeros may be
/// inserted between the image's elements, and each window is one position after the window before.
/// Otherwise each window is 1 to 3 elements after the window before.
inline Windows drawn_windows(std::mt19937& draw, int rank, bool spread) {
  Windows windows;
  windows.rank = rank;
  for (int d = 0; d < rank; ++d) {
    WindowAxis& axis = windows.axes[static_cast<std::size_t>(d)];
    axis.kernel = one_of(draw, 1, 3);
    axis.places = one_of(draw, 1, 6);
    axis.step = spread ? 1 : one_of(draw, 1, 3);
    axis.dilation = one_of(draw, 1, 3);
    axis.before = one_of(draw, -2, 4);
    axis.spread = spread ? one_of(draw, 1, 3) : 1;
  }
  return windows;
}

/// Appends a dimension to `shape` for each axis of the windows. The new dimension's size is the
/// member `field` of the axis, such as the number of windows along it.
inline Shape along(const Windows& windows, std::int64_t WindowAxis::* field, Shape shape) {
  for (int d = 0; d < windows.rank; ++d) {
    shape.push_back(windows.axes[static_cast<std::size_t>(d)].*field);
  }
  return shape;
}

/// Returns the element of an image's channel that weight number `tap` of the kernel multiplies in
/// window number `place`; +0 outside the image and between its elements.
inline float under(const Tensor& image, const Windows& windows, std::int64_t number,
                   std::int64_t channel, std::int64_t tap, std::int64_t place) {
  std::int64_t at = 0;
  std::int64_t scale = 1;
  for (int d = windows.rank - 1; d >= 0; --d) {
    const WindowAxis& axis = windows.axes[static_cast<std::size_t>(d)];
    const std::int64_t extent = image.shape()[static_cast<std::size_t>(d) + 2];
    const std::int64_t position =
        place % axis.places * axis.step + tap % axis.kernel * axis.dilation - axis.before;
    place /= axis.places;
    tap /= axis.kernel;
    if (position < 0 || position % axis.spread != 0 || position / axis.spread >= extent) return 0;
    at += position / axis.spread * scale;
    scale *= extent;
  }
  at += (number * image.shape()[1] + channel) * scale;
  return image.values()[static_cast<std::size_t>(at)];
}

/// Returns the unfolded image (im2col), with the shape images x groups x terms x windows.
inline Tensor unfolded(const Tensor& image, std::int64_t groups, const Windows& windows) {
  const std::int64_t images = image.shape()[0];
  const std::int64_t channels = image.shape()[1] / groups;
  const std::int64_t taps = windows.taps();
  const std::int64_t places = windows.places();
  std::vector<float> values;
  for (std::int64_t n = 0; n < images; ++n) {
    for (std::int64_t term = 0; term < groups * channels * taps; ++term) {
      for (std::int64_t place = 0; place < places; ++place) {
        values.push_back(under(image, windows, n, term / taps, term % taps, place));
      }
    }
  }
  return {{images, groups, channels * taps, places}, values};
}

}  // namespace cpd::testing
