// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/scaled_scales.h"
#include "cpd/backend/explain.h"
#include "cpd/numeric/scaled/power_blocks.h"

namespace cpd {
namespace {

/// Casts those blocks of a tensor that PowerBlocks supports: their scales are powers of two, and
/// their largest |x| is 0 or in a certain range (power_blocks.h).
class PowerCaster {
 public:
  PowerCaster(const ScaledPass& pass, const TensorView& out) : x_(pass.x), layout_(pass.layout()) {
    const bool narrow = x_.dtype == DType::bf16 || x_.dtype == DType::f32;
    run_.along = layout_.rows == 1;
    const bool fits = run_.along ? layout_.columns == kPowerBlock : layout_.columns == 1;
    if (narrow && fits && x_.is_contiguous() && !pass.known && !pass.of.apart &&
        out.dtype == DType::bf16 && out.is_contiguous()) {
      blocks_ = make_power_blocks(pass.plan());
    }
    run_.is_bf16 = x_.dtype == DType::bf16;
    run_.stride = layout_.row_stride();
    out_ = static_cast<std::uint16_t*>(out.data);
  }

  /// Returns whether Cast can cast any blocks, given the formats and tensors of the call. Which
  /// blocks Cast casts depends on the blocks' values.
  [[nodiscard]] bool casts() const { return blocks_.has_any(); }
  /// Casts the blocks of a tile that PowerBlocks supports. Calls other(part) for each range of the
  /// tile that contains other blocks, which must be cast by another method.
  template <class Other>
  void Cast(const Tile& tile, Other other) const {
    if (!blocks_.has_any()) return other(tile);
    PowerRun run = run_;
    run.rows = tile.rows;
    Tile rest = tile;
    while (rest.count > 0) {
      const std::int64_t first = layout_.index(rest.p, rest.i, rest.t, rest.j);
      run.n = rest.count;
      run.x = static_cast<const std::uint8_t*>(x_.data) + first * SizeOf(x_.dtype);
      run.y = out_ + first;
      const std::int64_t done = Kernels().cast_power_blocks(blocks_, run);
      rest.j += done;
      rest.count -= done;
      if (rest.count == 0) return;
      Tile part = rest;
      part.count = std::min(rest.count, run.along ? 16 * kPowerBlock : 2 * kPowerBlock);
      other(part);
      rest.j += part.count;
      rest.count -= part.count;
    }
  }

 private:
  const TensorView& x_;
  const BlockLayout& layout_;
  PowerBlocks blocks_;
  PowerRun run_;
  std::uint16_t* out_;
};

/// If this thread only records what calls would run (cpd.explain), records the kernel that
/// processes the tiles (ranges of elements) of a call's tensor, and returns true. Otherwise returns
/// false.
bool NotesTiles(const char* function, const ScaledPass& pass, bool powers, const char* kernel) {
  if (!Explains()) return false;
  NotePath(function, PathOf(pass.plan(), pass.route, powers));
  NoteKernel(kernel, {pass.layout().rows, pass.layout().columns});
  ForTiles(pass.tiles(), [](std::int64_t, std::int64_t) {});
  return true;
}

void CastTiles(const ScaledPass& pass, const TensorView& out) {
  const ScalesCall& of = pass.of;
  const BlockLayout& layout = pass.layout();
  const Tiles tiles = pass.tiles();
  const bool is_bf16 = out.dtype == DType::bf16 && out.is_contiguous();
  std::atomic<bool> holds = is_bf16 || out.dtype == DType::f32;
  const bool streams = of.call.n >= kStreamingFrom && pass.x.data != out.data;
  const PowerCaster powers(pass, out);
  if (NotesTiles("cast", pass, powers.casts(),
                 powers.casts() ? "cast_power_blocks" : "round_blocks")) {
    return;
  }
  ForTiles(tiles, [&](std::int64_t begin, std::int64_t end) {
    TileScaler scaler(pass);
    Writer<float> writer(out);
    const auto cast = [&](const Tile& tile) {
      scaler.ForElements(tile, [&](ScaledRun run, ElementRoute route, std::int64_t c) {
        run.apart = of.apart;
        const std::int64_t first = layout.index(tile.p, tile.i, tile.t, tile.j + c);
        if (is_bf16) {
          auto* const y = static_cast<std::uint16_t*>(out.data) + first;
          const Strided halves = Rows(y, run.rows, run.n, layout.row_stride(), DType::bf16);
          if (!Kernels().round_blocks(pass.plan(), route, run, halves)) holds = false;
          return;
        }
        if (writer.is_direct()) {
          run.streaming = streams;
          const float* y = writer.Target(first, run.n);
          Kernels().round_blocks(pass.plan(), route, run,
                                 Rows(y, run.rows, run.n, layout.row_stride()));
          return;
        }
        const ScaledRun all = run;
        run.rows = 1;
        for (std::int64_t r = 0; r < all.rows; ++r) {
          const std::int64_t at = first + r * layout.row_stride();
          run.x = all.x + r * all.x_stride;
          if (all.random != nullptr) run.random = all.random + r * all.random_stride;
          Kernels().round_blocks(pass.plan(), route, run, Contiguous(writer.Target(at, run.n)));
          writer.Flush(at, run.n);
        }
      });
    };
    for (std::int64_t s = begin; s < end; ++s) powers.Cast(tiles[s], cast);
  });
  if (of.holds != nullptr) *of.holds = holds;
}

/// Finds the lowest index of a NaN that has no code. Skips blocks whose scale is NaN: in such a
/// block every element gets the code 0.
class NanFinder {
 public:
  /// Look lowers *first to the lowest index of a NaN without a code. If `first` is null, Look does
  /// nothing.
  explicit NanFinder(unsigned long long* first) : first_(first) {}
  /// Searches run.n elements, the first row of `run`, for a NaN that has no code. Lowers *first_ to
  /// the index of the first such NaN, if that is less. The row's first element has index `first`.
  /// `places`: memory for run.n indices.
  void Look(const ScaledRun& run, std::int64_t first, std::uint32_t* places) {
    if (first_ == nullptr) return;
    const std::int64_t nans =
        Kernels().find_large(0x7FFFFFFF, 0x7F800001, run.n, run.x, nullptr, nullptr, places);
    for (std::int64_t k = 0; k < nans; ++k) {
      const float scale = run.scale[places[k] / run.run];
      if (scale == scale) return Lower(first_, static_cast<unsigned long long>(first) + places[k]);
    }
  }

 private:
  unsigned long long* first_;
};

/// ORs the first `count` bits of `from` into `to`, from bit number `begin` on. The remaining bits
/// of `from` must be 0. Other threads may write to the first and the last byte at the same time.
void PutBits(std::uint8_t* to, std::int64_t begin, const std::uint8_t* from, std::int64_t count) {
  const int shift = static_cast<int>(begin % 8);
  std::uint8_t* at = to + begin / 8;
  const std::int64_t last = (shift + count - 1) / 8;
  const std::int64_t given = (count + 7) / 8;
  for (std::int64_t i = 0; i <= last; ++i) {
    const int high = i < given ? from[i] << shift : 0;
    const int low = i > 0 ? from[i - 1] >> (8 - shift) : 0;
    const auto bits = static_cast<std::uint8_t>(high | low);
    if (i == 0 || i == last) {
      std::atomic_ref(at[i]).fetch_or(bits);
    } else {
      at[i] = bits;
    }
  }
}

void EncodeTiles(const ScaledPass& pass) {
  std::uint8_t* const packed = pass.of.packed;
  NanFinder nans(pass.of.first_nan);
  const Tiles tiles = pass.tiles();
  const std::int64_t n = pass.of.call.n, bits = pass.plan().element.bits;
  const bool on_bytes = tiles.on_bytes(bits);
  const bool streams = on_bytes && n >= kStreamingFrom;
  if (!on_bytes) std::fill_n(packed, (n * bits + 7) / 8, std::uint8_t{0});
  ForTiles(tiles, [&](std::int64_t begin, std::int64_t end) {
    TileScaler scaler(pass);
    std::vector<std::uint8_t> row;
    std::vector<std::uint32_t> places;
    for (std::int64_t s = begin; s < end; ++s) {
      const Tile tile = tiles[s];
      scaler.ForElements(tile, [&](ScaledRun run, ElementRoute route, std::int64_t c) {
        std::int64_t first = pass.layout().index(tile.p, tile.i, tile.t, tile.j + c);
        places.resize(static_cast<std::size_t>(run.n));
        row.resize(static_cast<std::size_t>((run.n * bits + 7) / 8));
        for (std::int64_t r = 0; r < run.rows; ++r, first += pass.layout().row_stride()) {
          std::uint8_t* const to = on_bytes ? packed + first * bits / 8 : row.data();
          nans.Look(run, first, places.data());
          run.streaming = streams;
          Kernels().encode_blocks(pass.plan(), route, run, to);
          if (!on_bytes) PutBits(packed, first * bits, row.data(), run.n * bits);
          run.x += run.x_stride;
          if (run.random != nullptr) run.random += run.random_stride;
        }
      });
    }
  });
}

/// Decodes the codes of all tiles (ranges of elements) of a tensor. Writes the values to `pass.x`,
/// the result.
void DecodeTiles(const ScaledPass& pass) {
  const Tiles tiles = pass.tiles();
  const std::int64_t bits = pass.plan().element.bits;
  ForTiles(tiles, [&](std::int64_t begin, std::int64_t end) {
    TileScaler scaler(pass);
    Writer<float> writer(pass.x);
    Floats elements;
    for (std::int64_t s = begin; s < end; ++s) {
      const Tile tile = tiles[s];
      scaler.ForScales(tile, [&](ScaledRun run, std::int64_t c) {
        std::int64_t first = pass.layout().index(tile.p, tile.i, tile.t, tile.j + c);
        for (std::int64_t r = 0; r < run.rows; ++r, first += pass.layout().row_stride()) {
          // Decoding must start at a code that begins on a byte.
          const std::int64_t before = (first * bits % 8 != 0) ? first % 8 : 0;
          elements.resize(static_cast<std::size_t>(before + run.n));
          Kernels().decode({.n = before + run.n,
                            .plan = &pass.plan().element,
                            .packed = pass.of.packed + (first - before) * bits / 8,
                            .out = Contiguous(elements.data())});
          run.x = elements.data() + before;
          Kernels().scale_blocks(pass.plan().wide_values, run, writer.Target(first, run.n));
          writer.Flush(first, run.n);
        }
      });
    }
  });
}

}  // namespace

namespace cpu {

int cast_scaled(const Launch& /*launch*/, const ScalesCall& call) {
  const ScaledPass pass(call, call.call.x);
  CastTiles(pass, ViewOf(call.out));
  return 0;
}

int cast_both(const Launch& launch, const CastBothCall& call) {
  cast_scaled(launch, call.rows);
  return cast_scaled(launch, call.columns);
}

int encode_scaled(const Launch& /*launch*/, const ScalesCall& call) {
  const ScaledPass pass(call, call.call.x);
  if (!NotesTiles("encode", pass, false, "encode_blocks")) EncodeTiles(pass);
  return 0;
}

int decode_scaled(const Launch& /*launch*/, const ScalesCall& call) {
  const ScaledPass pass(call, call.out);
  if (!NotesTiles("decode", pass, false, "scale_blocks")) DecodeTiles(pass);
  return 0;
}

}  // namespace cpu
}  // namespace cpd
