// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/scaled_tiles.h"

#include <algorithm>

#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"

namespace cpd {
namespace {

// kLine: the least number of columns of a tile of several rows. With fewer columns, such a tile
// would use little of each memory page that it touches. kTall: the number of elements of a tile of
// several rows.
constexpr std::int64_t kLine = 128, kTall = 4 * kStage;
// The approximate number of columns of a tile, if blocks have more rows than a tile may have.
constexpr std::int64_t kPartColumns = 1024;

std::int64_t Pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

/// Divides a tensor's random integers into strips (ranges of whole rows), which are generated one
/// at a time. The strips' heights are such that a tile of fewer than kBlock rows lies in one strip.
Strips StripsOf(const BlockLayout& layout, const TensorView& indices) {
  return {indices, kBlock, layout.rows < kBlock ? layout.rows : kPartRows};
}

}  // namespace

TensorView ViewOf(const Strided& x) {
  TensorView view;
  view.data = x.data;
  view.dtype = x.dtype;
  view.rank = x.rank;
  std::copy_n(x.shape, x.rank, view.shape.begin());
  std::copy_n(x.stride, x.rank, view.stride.begin());
  return view;
}

Tiles::Tiles(const BlockLayout& layout, bool whole) : layout_(layout) {
  rows_ = layout.rows;
  const std::int64_t wide = std::min(kStage, kTall / layout.rows);  // of several rows
  const bool parts = !whole && layout.rows > kTall / kLine;
  if (parts) rows_ = kPartRows;
  if (whole || layout.columns <= kStage) {
    const std::int64_t wanted =
        parts ? kPartColumns : std::max(std::min(kLine, layout.width), wide);
    count_ = layout.columns * std::max<std::int64_t>(1, wanted / layout.columns);
    along_ = Pieces(layout.width, count_);
  } else {
    count_ = kStage;
    pieces_ = Pieces(layout.columns, kStage);
    along_ = pieces_ * layout.across();
  }
  count_ = std::min(count_, layout.width);
  if (!whole) {
    if (!parts) rows_ = std::min(layout.rows, std::max<std::int64_t>(1, kStage / count_));
    parts_ = Pieces(layout.rows, rows_);
  }
  size_ = layout.planes * layout.bands() * parts_ * layout.middle * along_;
}

bool Tiles::on_bytes(std::int64_t bits) const {
  const bool one_row = layout_.planes * layout_.height * layout_.middle == 1;
  const std::int64_t begins_at = pieces_ == 1 ? count_ : layout_.columns;
  return bits % 8 == 0 || (one_row && (along_ == 1 || begins_at * bits % 8 == 0));
}

Tile Tiles::operator[](std::int64_t n) const {
  Tile tile;
  const std::int64_t s = n % along_;
  n /= along_;
  tile.t = n % layout_.middle;
  n /= layout_.middle;
  const std::int64_t part = n % parts_;
  n /= parts_;
  const std::int64_t band = n % layout_.bands();
  tile.p = n / layout_.bands();
  tile.i = band * layout_.rows + part * rows_;
  const std::int64_t last = std::min((band + 1) * layout_.rows, layout_.height);
  tile.rows = std::max<std::int64_t>(0, std::min(rows_, last - tile.i));
  std::int64_t end = layout_.width;
  if (pieces_ == 1) {
    tile.j = s * count_;
  } else {
    const std::int64_t block = s / pieces_;
    tile.j = block * layout_.columns + s % pieces_ * count_;
    end = std::min(end, (block + 1) * layout_.columns);
  }
  tile.count = std::max<std::int64_t>(0, std::min(count_, end - tile.j));
  return tile;
}

void ForTiles(const Tiles& tiles, const std::function<void(std::int64_t, std::int64_t)>& body) {
  parallel_for(tiles.size(), 1, kSerialBelow / tiles.elements(), body);
}

TileRows TileReader::Read(const Tile& tile) {
  const std::int64_t begin = layout_.index(tile.p, tile.i, tile.t, tile.j);
  if (is_direct()) return {reader_.Read(begin, tile.count), layout_.row_stride()};
  const auto read = [&](const Box& box) { return of_strips_.Read(box, 0).at; };
  if (strips_.fit() && tile.rows == 1) {
    return {strip_.Read(read, begin, tile.count, values_), tile.count};
  }
  if (layout_.middle == 1 && strips_.have(layout_.height, layout_.width)) {
    if (tile.rows <= kStripRows) {
      const std::int64_t n = (tile.rows - 1) * layout_.width + tile.count;
      return {strip_.Read(read, begin, n, values_), layout_.width};
    }
    const BoxRows<const float> rows = boxes_.Read(strips_.box_at(begin, tile.rows, tile.count));
    return {rows.at, rows.stride};
  }
  values_.resize(static_cast<std::size_t>(tile.rows * tile.count));
  if (halves_ != nullptr) {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      Kernels().widen_bf16(tile.count, halves_ + begin + r * layout_.row_stride(),
                           values_.data() + r * tile.count);
    }
    return {values_.data(), tile.count};
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    for (std::int64_t c = 0; c < tile.count; c += kStage) {
      const std::int64_t n = std::min(kStage, tile.count - c);
      const float* from = reader_.Read(begin + r * layout_.row_stride() + c, n);
      std::copy_n(from, n, values_.data() + r * tile.count + c);
    }
  }
  return {values_.data(), tile.count};
}

bool TurnsIntegers(const BlockLayout& layout, const TensorView& indices) {
  const Strips strips = StripsOf(layout, indices);
  return layout.rows == 1 ? strips.fit()
                          : layout.middle == 1 && strips.have(layout.height, layout.width);
}

TileIntegers::TileIntegers(const RoundPlan& plan, const BlockLayout& layout,
                           const TensorView* random, const TensorView* indices)
    : plan_(plan), layout_(layout), drawn_(plan), of_strips_(plan) {
  if (random != nullptr) {
    given_.emplace(*random);
  } else if (indices != nullptr) {
    turned_.emplace(StripsOf(layout, *indices));
  }
}

BoxRows<const std::uint32_t> TileIntegers::Read(const Tile& tile, std::int64_t begin,
                                                std::int64_t count) {
  if (plan_.mode != Rounding::stochastic) return {nullptr, 0};
  const std::int64_t first = layout_.index(tile.p, tile.i, tile.t, tile.j + begin);
  if (turned_) {
    auto& [strips, strip] = *turned_;
    const auto read = [&](const Box& box) { return of_strips_.Read(box); };
    if (tile.rows == 1) return {strip.Read(read, first, count, values_), count};
    if (tile.rows >= kBlock) return {drawn_.Read(strips.box_at(first, tile.rows, count)), count};
    const std::int64_t n = (tile.rows - 1) * layout_.width + count;
    return {strip.Read(read, first, n, values_), layout_.width};
  }
  if (given_) {
    values_.resize(static_cast<std::size_t>(tile.rows * count));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int64_t at = first + r * layout_.row_stride();
      std::copy_n(given_->Read(at, count), count, values_.data() + r * count);
    }
    return {values_.data(), count};
  }
  const bool is_drawn = first >= first_ && first + count <= first_ + columns_;
  if (!is_drawn) {
    const std::int64_t rest = layout_.width - tile.j - begin;
    first_ = first;
    columns_ = tile.rows == 1 ? count : std::min(rest, std::max(count, kBlock));
    std::uint32_t* to = Sized(values_, tile.rows * columns_);
    for (std::int64_t r = 0; r < tile.rows; ++r, to += columns_) {
      DrawIntegers(plan_, first + r * layout_.row_stride(), columns_, to);
    }
  }
  return {values_.data() + (first - first_), columns_};
}

}  // namespace cpd
