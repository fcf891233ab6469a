// SPDX-License-Identifier: Apache-2.0
//
// An image as an operand of a matrix product: the windows of a convolution's kernel, read from the
// image in place.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpd/base/tensor.h"

namespace cpd {

/// The positions of windows on an image along one of its dimensions: element `tap` of window number
/// `place` is at position place * step + tap * dilation - before. The image's element i is at
/// position i * spread; at all other positions, outside and between, there is +0.
struct WindowAxis {
  std::int64_t kernel = 1;    ///< elements of a window
  std::int64_t places = 1;    ///< windows
  std::int64_t step = 1;      ///< from one window to the next
  std::int64_t dilation = 1;  ///< from one element of a window to the next
  std::int64_t before = 0;    ///< padding before the image; negative: that much of it is skipped
  std::int64_t spread = 1;    ///< from one element of the image to the next
};

/// The windows along each of an image's dimensions.
struct Windows {
  static constexpr int kMaxRank = 8;

  int rank = 0;
  std::array<WindowAxis, kMaxRank> axes{};

  [[nodiscard]] CPD_API std::int64_t taps() const;
  [[nodiscard]] CPD_API std::int64_t places() const;
};

/// A thread's buffers for images.
struct ImageBuffer;

/// Matrices of an image's elements. Their terms are (channel of a group, tap), their windows
/// (image, place), both row-major; a matrix has the terms as rows and the windows as columns, or,
/// with Rows::windows, is the transpose.
class CPD_API ImageOperand {
 public:
  /// The matrices of a batch: one for each group, with the windows of all images; or one for each
  /// image and each group in it.
  enum class Batch : std::uint8_t { groups, images_and_groups };
  enum class Rows : std::uint8_t { terms, windows };

  /// image: images x channels x its dimensions, fp32, bf16 or fp16, any strides.
  ImageOperand(const TensorView& image, std::int64_t groups, const Windows& windows, Batch batch,
               Rows rows);

  /// A part of a matrix in binary32, valid until the buffer's next use.
  TensorView Read(std::int64_t batch, std::int64_t row, std::int64_t rows, std::int64_t column,
                  std::int64_t columns, ImageBuffer& buffer) const;
  /// Writes binary32 values that the image's type holds, rows `stride` apart, to a part whose
  /// positions are all different elements of the image. The rows are terms.
  void Write(std::int64_t batch, std::int64_t row, std::int64_t rows, std::int64_t column,
             std::int64_t columns, const float* from, std::int64_t stride,
             ImageBuffer& buffer) const;

 private:
  friend struct ImageBuffer;
  /// Windows that follow one another along the last axis.
  struct Run {
    std::int64_t image = 0;  ///< the element at which their image begins
    std::int64_t place = 0;  ///< the first window's
    std::int64_t count = 0;
    std::array<std::int64_t, Windows::kMaxRank> at{};  ///< positions of tap 0 along the other axes
  };
  /// The windows whose element is on the image, for one tap of the last axis: first, first +
  /// every_, …, below end. The first window's element is `offset` from the row's beginning.
  struct LastTap {
    std::int64_t first = 0, end = 0, offset = 0;
  };
  /// A term: its channel within the group, and its tap along each axis.
  struct Term {
    std::int64_t channel = 0;
    std::array<std::int64_t, Windows::kMaxRank> tap{};
  };

  void MergeAxes();
  void FindLastTaps();
  [[nodiscard]] Term TermAt(std::int64_t number) const;
  void Advance(Term& term) const;
  void FindRuns(std::int64_t first, std::int64_t n, std::vector<Run>& runs) const;
  [[nodiscard]] std::int64_t ImageOf(std::int64_t batch) const;
  [[nodiscard]] std::int64_t OffsetOf(std::int64_t batch, const Term& term) const;
  bool Locate(const Run& run, const Term& term, std::int64_t& offset) const;

  template <class T>
  void Fill(std::int64_t batch, std::int64_t first_term, std::int64_t terms,
            const std::vector<Run>& runs, T* to) const;
  template <class T>
  void Put(std::int64_t batch, std::int64_t term, const std::vector<Run>& runs,
           const T* from) const;

  TensorView image_;
  std::int64_t groups_, channels_;  ///< channels of a group
  Windows windows_;                 ///< with axes merged where possible (MergeAxes)
  std::int64_t taps_, places_;
  Batch batch_;
  Rows rows_;
  std::int64_t every_ = 1, last_step_ = 1;  ///< the last axis's; last_step_ in elements
  std::vector<LastTap> last_;
};

struct ImageBuffer {
  std::vector<float> values;
  std::vector<std::uint16_t> halves;
  std::vector<ImageOperand::Run> runs;
};

/// Images that replace a product's operands and its result; null: the ones of MatrixProduct.
struct ProductImages {
  const ImageOperand* a = nullptr;
  const ImageOperand* b = nullptr;
  const ImageOperand* out = nullptr;
  /// The ends of the chunks of a chunked sum in ascending order; the last is the product's depth. A
  /// chunk without products is skipped. If the span is empty, every `chunk` products are a chunk.
  std::span<const std::int64_t> chunk_ends;
};

}  // namespace cpd
