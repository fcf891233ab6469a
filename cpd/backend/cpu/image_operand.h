// SPDX-License-Identifier: Apache-2.0
//
// An image as an operand of a matrix product. Windows of a convolution's kernel are read from the
// image in place.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpd/base/tensor.h"

namespace cpd {

/// The windows of a convolution along one dimension of an image. Element `tap` of window number
/// `place` is at position place * step + tap * dilation - before. Element i of the image is at
/// position i * spread. All positions outside the image and between its elements hold +0.
struct WindowAxis {
  std::int64_t kernel = 1;    ///< elements of a window
  std::int64_t places = 1;    ///< windows
  std::int64_t step = 1;      ///< from one window to the next
  std::int64_t dilation = 1;  ///< from one element of a window to the next
  std::int64_t before = 0;    ///< padding before the image; negative: elements to skip
  std::int64_t spread = 1;    ///< from one element of the image to the next
};

/// The windows of a convolution (positions of its kernel) along each dimension of an image.
struct Windows {
  static constexpr int kMaxRank = 8;

  int rank = 0;
  std::array<WindowAxis, kMaxRank> axes{};

  [[nodiscard]] CPD_API std::int64_t taps() const;
  [[nodiscard]] CPD_API std::int64_t places() const;
};

/// One thread's buffers for images.
struct ImageBuffer;

/// An image unfolded into matrices, without a copy. A row of a matrix is a term: a pair (channel
/// within a group, element of the kernel). A column is a window: a pair (image, window position).
/// Both are in row-major order. With Rows::windows the matrix is transposed.
class CPD_API ImageOperand {
 public:
  /// The batch of matrices into which the images are unfolded. `groups`: one matrix for each
  /// channel group of the convolution, with the windows of all images. `images_and_groups`: one
  /// matrix for each image and each channel group.
  enum class Batch : std::uint8_t { groups, images_and_groups };
  enum class Rows : std::uint8_t { terms, windows };

  /// `image`: images x channels x the image's dimensions, of fp32, bf16 or fp16, with any strides.
  ImageOperand(const TensorView& image, std::int64_t groups, const Windows& windows, Batch batch,
               Rows rows);

  /// Returns a range of a matrix in binary32, valid until the buffer is used again.
  TensorView Read(std::int64_t batch, std::int64_t row, std::int64_t rows, std::int64_t column,
                  std::int64_t columns, ImageBuffer& buffer) const;
  /// Writes a range of a matrix to the image. The rows of the matrix must be terms: this object was
  /// made with Rows::terms. The values are in `from`, whose rows begin `stride` values apart, and
  /// the image's type must hold them exactly. Each position in the range must be a different
  /// element of the image.
  void Write(std::int64_t batch, std::int64_t row, std::int64_t rows, std::int64_t column,
             std::int64_t columns, const float* from, std::int64_t stride,
             ImageBuffer& buffer) const;

 private:
  friend struct ImageBuffer;
  /// Consecutive windows along the last axis.
  struct Run {
    std::int64_t image = 0;  ///< the element at which their image begins
    std::int64_t place = 0;  ///< the first window's
    std::int64_t count = 0;
    std::array<std::int64_t, Windows::kMaxRank> at{};  ///< positions of tap 0 along the other axes
  };
  /// For one position in the kernel along the last axis: the windows that read an element of the
  /// image at that position. All other windows read padding there, or a gap between the image's
  /// elements. The windows are number first, first + every_, …, below `end`. Window `first` reads
  /// the element `offset` elements after the start of the image's row.
  struct LastTap {
    std::int64_t first = 0, end = 0, offset = 0;
  };
  /// A row of the unfolded image: a channel within the group, and the position in the kernel along
  /// each axis (`tap`).
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

/// Images that replace a product's operands or its result. Null: the operand or result of
/// MatrixProduct is used.
struct ProductImages {
  const ImageOperand* a = nullptr;
  const ImageOperand* b = nullptr;
  const ImageOperand* out = nullptr;
  /// The ends of the chunks of a chunked sum, in ascending order of k. The last end is the
  /// product's depth. A chunk without products is skipped. If `chunk_ends` is empty, each `chunk`
  /// products form a chunk.
  std::span<const std::int64_t> chunk_ends;
};

}  // namespace cpd
