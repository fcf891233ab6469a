// SPDX-License-Identifier: Apache-2.0
//
// The tiles in which the CPU processes a tensor of a scaled format: their positions, values and
// random integers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cpd/backend/calls.h"
#include "cpd/backend/cpu/boxes.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/base/tensor.h"
#include "cpd/export.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/scaled/block_layout.h"

namespace cpd {

/// Converts `x`, the description of a tensor in a kernel's arguments, to a view of the tensor.
TensorView ViewOf(const Strided& x);

/// A tile: the elements that a thread handles at a time. A tile has `rows` x `count` elements of
/// one band (a row of blocks). Its first element is element (p, i, t, j) of the BlockLayout: the
/// indices in the dimensions planes, height, middle and width.
struct Tile {
  std::int64_t p = 0, i = 0, t = 0, j = 0;
  std::int64_t rows = 0, count = 0;
};

/// The number of rows of a tile, if blocks have more rows than a tile may have.
constexpr std::int64_t kPartRows = 16;

/// The tiles that cover a tensor divided into blocks (`layout`). A tile of one row has about kStage
/// elements, a tile of several rows about four times as many. A tile's row has up to kStage
/// elements, or all elements of a block's row.
///
/// With `whole`, each tile consists of whole blocks. Without `whole`, a tile is a part of one
/// block, or consists of some rows of neighboring blocks, each in full width.
class CPD_API Tiles {
 public:
  Tiles(const BlockLayout& layout, bool whole);
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Returns the number of elements of the largest of the tensor's tiles.
  [[nodiscard]] std::int64_t elements() const { return rows_ * count_; }
  /// Returns whether the packed codes, of `bits` bits each, of every tile of the tensor begin and
  /// end on full bytes. The end of the last tile is not checked.
  [[nodiscard]] bool on_bytes(std::int64_t bits) const;
  /// Returns tile number n of the tensor. The tile's `count` is 0 if the tile is empty, because the
  /// last block of a row is shorter than the others.
  [[nodiscard]] Tile operator[](std::int64_t n) const;

 private:
  BlockLayout layout_;
  std::int64_t rows_ = 1, count_ = 1;    // extents of a tile
  std::int64_t parts_ = 1, pieces_ = 1;  // tiles in a band's height, in a block's columns
  std::int64_t along_ = 1, size_ = 0;    // tiles in a width, in all
};

/// Divides the tiles of a tensor among threads: calls body(begin, end) for ranges of tile numbers
/// that cover all tiles.
void ForTiles(const Tiles& tiles, const std::function<void(std::int64_t, std::int64_t)>& body);

/// The values of a tile. `at` points to the first value, and rows begin `stride` values apart.
struct TileRows {
  const float* at;
  std::int64_t stride;
};

/// Reads tiles of a tensor as binary32 values, in place if the tensor is contiguous binary32.
class TileReader {
 public:
  TileReader(const TensorView& x, const BlockLayout& layout)
      : reader_(x),
        boxes_(x),
        of_strips_(x),
        strips_(x, kStripRows, layout.rows <= kStripRows ? layout.rows : kPartRows),
        strip_(strips_),
        layout_(layout) {
    if (x.dtype == DType::bf16 && x.is_contiguous()) {
      halves_ = static_cast<const std::uint16_t*>(x.data);
    }
  }
  [[nodiscard]] bool is_direct() const { return reader_.is_direct(); }

  /// Returns the tensor's values in a tile, valid until the next call.
  TileRows Read(const Tile& tile);

 private:
  static constexpr std::int64_t kStripRows = 64;  ///< whole cache lines of any type

  Reader<float> reader_;
  BoxReader<float> boxes_, of_strips_;
  Strips strips_;
  StripReader<float> strip_;
  const BlockLayout& layout_;
  const std::uint16_t* halves_ = nullptr;  ///< the patterns of a contiguous bf16 tensor
  std::vector<float> values_;
};

/// For a cast whose random integers are not numbered in the row-major order of `layout`: returns
/// whether each tile's random integers can be generated when the tile is cast. `indices` has no
/// memory; an element's offset in it, by its strides, is the index of the element's random integer.
bool TurnsIntegers(const BlockLayout& layout, const TensorView& indices);

/// The random integers of a tile's elements: the caller's, or integers generated from the elements'
/// indices. At most one of `random` and `indices` (ScalesCall) is not null.
class TileIntegers {
 public:
  TileIntegers(const RoundPlan& plan, const BlockLayout& layout, const TensorView* random,
               const TensorView* indices);
  /// Returns the random integers of `count` columns of the tile, from the tile's column `begin` on;
  /// null if the rounding needs none.
  BoxRows<const std::uint32_t> Read(const Tile& tile, std::int64_t begin, std::int64_t count);

 private:
  const RoundPlan& plan_;
  const BlockLayout& layout_;
  std::optional<Reader<std::uint32_t>> given_;
  BoxIntegers drawn_, of_strips_;
  struct Turned {
    explicit Turned(const Strips& all) : strips(all), strip(all) {}
    Strips strips;
    StripReader<std::uint32_t> strip;
  };
  std::optional<Turned> turned_;
  std::vector<std::uint32_t> values_;
  /// `values_` caches random integers of each row of the tile: `columns_` columns, starting at the
  /// element with index `first_`.
  std::int64_t first_ = 0, columns_ = 0;
};

}  // namespace cpd
