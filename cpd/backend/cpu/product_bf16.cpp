// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/product_bf16.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cpd/backend/bf16_kernels.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Word = std::uint32_t;

/// Operands are transposed in squares that stay in the cache. A square has kSquare lines (rows of a
/// or columns of b) and kSquare pairs of values of k.
constexpr std::int64_t kSquare = 64;
/// The number of pairs of values of k for which a panel (a group of columns of b that is packed
/// together) stays in the L2 cache.
constexpr std::int64_t kPairs = 1024;
/// The number of rows of one task.
constexpr std::int64_t kRows = 192;
/// The number of multiplications below which one thread computes a product alone.
constexpr std::int64_t kFew = std::int64_t{1} << 20;
/// The number of words (pairs of bf16 values) below which one thread packs an operand alone.
constexpr std::int64_t kSerialWordsBelow = std::int64_t{1} << 15;

struct Free {
  void operator()(Word* words) const { std::free(words); }
};
using Words = std::unique_ptr<Word, Free>;

Words MakeWords(std::int64_t count) {
  const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(Word) / 64 + 1) * 64;
  Words words(static_cast<Word*>(std::aligned_alloc(64, bytes)));
  if (words == nullptr) throw NoMemory(bytes, "an operand's packed values");
  return words;
}

/// A matrix operand as lines: the rows of a or the columns of b. A line has one value for each k.
struct Lines {
  const std::uint8_t* data;
  std::int64_t size;  ///< of an element
  std::int64_t lines, count;
  std::int64_t line_stride, k_stride;

  [[nodiscard]] bool along() const { return k_stride == 1 || count == 1; }
  [[nodiscard]] Bf16Lines from(std::int64_t line, std::int64_t k) const {
    return {.values = data + (line * line_stride + k * k_stride) * size,
            .wide = size == 4,
            .along = along(),
            .stride = along() ? line_stride : k_stride};
  }
};

Lines LinesOf(const TensorView& x, std::int64_t n, int line, int k) {
  const std::int64_t size = SizeOf(x.dtype);
  return {.data = static_cast<const std::uint8_t*>(x.data) + n * x.stride[0] * size,
          .size = size,
          .lines = x.shape[line],
          .count = x.shape[k],
          .line_stride = x.stride[line],
          .k_stride = x.stride[k]};
}

/// Packs lines begin … end - 1 (rows of a or columns of b) of an operand into words. A word holds a
/// pair of neighboring values along k. With `along`, word k of line i is at words[i * stride + k],
/// else at words[k * stride + i]. Returns the bf16 pattern of the least nonzero magnitude, minus 1.
/// If all values are 0, returns 2^32 - 1, which is 0 - 1 as a word.
Word Pack(const Lines& x, std::int64_t begin, std::int64_t end, bool along, Word* words,
          std::int64_t stride) {
  if (x.along() == along) {
    return Bf16Kernels()->pair(x.from(begin, 0), end - begin, x.count, words, stride);
  }
  std::array<Word, kSquare * kSquare> square;
  Word least = ~Word{0};
  for (std::int64_t i = begin; i < end; i += kSquare) {
    const std::int64_t lines = std::min(kSquare, end - i);
    for (std::int64_t k = 0; k < x.count; k += 2 * kSquare) {
      const std::int64_t count = std::min(2 * kSquare, x.count - k);
      const std::int64_t pairs = (count + 1) / 2;
      const Word found = Bf16Kernels()->pair(x.from(i, k), lines, count, square.data(), kSquare);
      least = std::min(least, found);
      if (along) {
        Kernels().transpose(pairs, lines, square.data(), kSquare,
                            words + (i - begin) * stride + k / 2, stride);
      } else {
        Kernels().transpose(lines, pairs, square.data(), kSquare,
                            words + k / 2 * stride + (i - begin), stride);
      }
    }
  }
  return least;
}

/// Returns the exponent field of the least magnitude of some values, given the magnitude's bf16
/// pattern minus 1. Returns a large number if all values are 0.
std::int64_t ExponentOf(Word below) {
  return below == ~Word{0} ? std::int64_t{1} << 20 : (below + 1) >> 7;
}

void KeepLeast(std::atomic<Word>& least, Word found) {
  Word seen = least;
  while (found < seen && !least.compare_exchange_weak(seen, found)) {
  }
}

/// Returns whether no sum of products can be subnormal. Let p be 2 to the sum of the exponents of
/// the least magnitudes of a and b. No sum is subnormal if the numbers are normal and p >= 2^-112:
/// each product, like each rounded sum, is a multiple of 2^-14 * p.
bool StaysNormal(Word least_of_a, Word least_of_b) {
  const std::int64_t first = ExponentOf(least_of_a), second = ExponentOf(least_of_b);
  return first > 0 && second > 0 && first + second >= 2 * 127 + 14 - 126;
}

Bf16Scales ScalesOf(const TensorView* x) {
  if (x == nullptr) return {};
  return {.values = static_cast<const float*>(x->data),
          .row_stride = x->shape[0] == 1 ? 0 : x->stride[0],
          .by_column = x->shape[1] > 1 && x->stride[1] == 1};
}

/// Writes the results of a product: the sums themselves, or the sums after the operations of
/// ProductFinish.
class Results {
 public:
  Results(const TensorView& out, const ProductFinish& finish)
      : size_(SizeOf(out.dtype)),
        stride_(out.shape[2]),
        is_direct_(out.dtype == DType::f32 && finish.first == nullptr && finish.second == nullptr &&
                   finish.bias == nullptr),
        finish_{
            .scales = {ScalesOf(finish.first), ScalesOf(finish.second)},
            .bias = finish.bias == nullptr ? nullptr : static_cast<const float*>(finish.bias->data),
            .out_stride = stride_,
            .wide = out.dtype == DType::f32} {}
  /// Returns whether sums are computed in the result's own memory, without a buffer.
  [[nodiscard]] bool is_direct() const { return is_direct_; }
  [[nodiscard]] std::int64_t stride() const { return stride_; }
  /// Returns the address of an element of the matrix that begins at `out`.
  [[nodiscard]] std::uint8_t* At(std::uint8_t* out, std::int64_t row, std::int64_t column) const {
    return out + (row * stride_ + column) * size_;
  }
  /// Writes the results of a tile of sums. (row, column) is the position of the tile's first sum in
  /// the result.
  void Finish(const Bf16Tile& tile, std::uint8_t* out, std::int64_t row,
              std::int64_t column) const {
    Bf16Finish finish = finish_;
    finish.rows = tile.rows;
    finish.columns = tile.columns;
    finish.sums = tile.sums;
    finish.stride = tile.stride;
    finish.out = At(out, row, column);
    for (Bf16Scales& scales : finish.scales) {
      if (scales.values == nullptr) continue;
      scales.values += row * scales.row_stride + (scales.by_column ? column : 0);
    }
    if (finish.bias != nullptr) finish.bias += column;
    Bf16Kernels()->finish(finish);
  }

 private:
  std::int64_t size_, stride_;
  bool is_direct_;
  Bf16Finish finish_;
};

bool Multiply(const Lines& a, const Lines& b, const Results& results, std::uint8_t* out) {
  const std::int64_t pairs = (a.count + 1) / 2;
  const std::int64_t a_stride = (pairs + 15) / 16 * 16 + 16;  // rows begin in different cache sets
  const std::int64_t panels = (b.lines + kBf16Columns - 1) / kBf16Columns;
  const std::int64_t panel_words = pairs * kBf16Columns;
  const Words of_a = MakeWords(a.lines * a_stride);
  const Words of_b = MakeWords(panels * panel_words);
  std::atomic<Word> least_of_a = ~Word{0};
  std::atomic<Word> least_of_b = ~Word{0};
  parallel_for(
      a.lines, kSquare, kSerialWordsBelow / pairs + 1, [&](std::int64_t begin, std::int64_t end) {
        KeepLeast(least_of_a, Pack(a, begin, end, true, of_a.get() + begin * a_stride, a_stride));
      });
  parallel_for(panels, 1, kSerialWordsBelow / panel_words + 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t p = begin; p < end; ++p) {
                   Word* const to = of_b.get() + p * panel_words;
                   const std::int64_t first = p * kBf16Columns;
                   const std::int64_t last = std::min(first + kBf16Columns, b.lines);
                   if (last - first < kBf16Columns) std::fill_n(to, panel_words, 0);
                   KeepLeast(least_of_b, Pack(b, first, last, false, to, kBf16Columns));
                 }
               });
  if (!StaysNormal(least_of_a, least_of_b)) return false;
  const std::int64_t parts = (a.lines + kRows - 1) / kRows;
  const std::int64_t per_task = std::min(kRows, a.lines) * kBf16Columns * a.count;
  parallel_for(panels * parts, 1, kFew / per_task + 1, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::array<float, kRows * kBf16Columns> sums;  // within the L2 cache
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t p = task / parts, row = task % parts * kRows;
      const std::int64_t column = p * kBf16Columns;
      Bf16Tile tile{.rows = std::min(kRows, a.lines - row),
                    .columns = std::min<std::int64_t>(kBf16Columns, b.lines - column),
                    .a_stride = a_stride,
                    .sums = sums.data(),
                    .stride = kBf16Columns};
      if (results.is_direct()) {
        tile.sums = reinterpret_cast<float*>(results.At(out, row, column));
        tile.stride = results.stride();
      }
      for (std::int64_t k = 0; k < pairs; k += kPairs) {
        tile.pairs = std::min(kPairs, pairs - k);
        tile.a = of_a.get() + row * a_stride + k;
        tile.b = of_b.get() + p * panel_words + k * kBf16Columns;
        tile.adds = k > 0;
        Bf16Kernels()->tile(tile);
      }
      if (!results.is_direct()) results.Finish(tile, out, row, column);
    }
  });
  return true;
}

void CheckMatrices(const TensorView& x, const char* name) {
  Check(x, name);
  if (x.rank != 3 || !x.on_host() || (x.dtype != DType::f32 && x.dtype != DType::bf16)) {
    throw Error(std::string(name) + " must be a batch of matrices on the CPU, of fp32 or bf16");
  }
  const auto is_dense = [&](int d) { return x.stride[d] == 1 || x.shape[d] == 1; };
  if (!is_dense(1) && !is_dense(2)) {
    throw Error(std::string(name) + " must have rows or columns without gaps");
  }
}

void CheckScales(const TensorView* x, const TensorView& out, const char* name) {
  if (x == nullptr) return;
  Check(*x, name);
  const auto stride = [&](int d) { return x->shape[d] == 1 ? 0 : x->stride[d]; };
  if (x->rank != 2 || x->device != Device::cpu || x->dtype != DType::f32 ||
      x->shape[0] != out.shape[1] || x->shape[1] != out.shape[2] || stride(1) < 0 ||
      stride(1) > 1 || (stride(0) != 0 && stride(1) != 0)) {
    throw Error(std::string(name) + " must be M x L fp32 scales of rows or of columns on the CPU");
  }
}

void CheckFinish(const ProductFinish& finish, const TensorView& out) {
  CheckScales(finish.first, out, "first");
  CheckScales(finish.second, out, "second");
  if (finish.bias == nullptr) return;
  Check(*finish.bias, "bias");
  if (finish.bias->rank != 1 || finish.bias->device != Device::cpu ||
      finish.bias->dtype != DType::f32 || !finish.bias->is_contiguous() ||
      finish.bias->shape[0] != out.shape[2]) {
    throw Error("bias must be L contiguous fp32 numbers on the CPU");
  }
}

/// Writes the results of sums that have no terms.
void FinishEmpty(const Results& results, const TensorView& out) {
  auto* const to = static_cast<std::uint8_t*>(out.data);
  const std::vector<float> sums(static_cast<std::size_t>(out.shape[2]));
  const std::int64_t row_bytes = out.shape[2] * SizeOf(out.dtype);
  Bf16Tile tile{.rows = 1, .columns = out.shape[2], .sums = const_cast<float*>(sums.data())};
  for (std::int64_t n = 0; n < out.shape[0]; ++n) {
    for (std::int64_t row = 0; row < out.shape[1]; ++row) {
      results.Finish(tile, to + n * out.shape[1] * row_bytes, row, 0);
    }
  }
}

}  // namespace

bool ProductOfBf16(const TensorView& a, const TensorView& b, const TensorView& out,
                   const ProductFinish& finish) {
  CheckMatrices(a, "a");
  CheckMatrices(b, "b");
  CheckMatrices(out, "out");
  if (!out.is_contiguous()) throw Error("out of a product must be contiguous");
  if (a.shape[0] != out.shape[0] || b.shape[0] != out.shape[0] || a.shape[1] != out.shape[1] ||
      a.shape[2] != b.shape[1] || b.shape[2] != out.shape[2]) {
    throw Error("a, b and out must be N x M x K, N x K x L and N x M x L");
  }
  CheckFinish(finish, out);
  if (Bf16Kernels() == nullptr) return false;
  if (Explains()) {
    NotePath("product_of_bf16", {"bf16_pairs", "unless a sum may be subnormal: the values decide"});
    NoteKernel("tile", {kRows, kBf16Columns, 2 * kPairs});
    Explaining::Current()->Take(MaxThreads());
    return true;
  }
  const std::int64_t n = out.shape[0], size = out.shape[1] * out.shape[2];
  if (out.size() == 0) return true;
  const Results results(out, finish);
  if (a.shape[2] == 0) {
    FinishEmpty(results, out);
    return true;
  }
  auto* const to = static_cast<std::uint8_t*>(out.data);
  std::atomic<bool> fits = true;
  const auto multiply = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end && fits; ++i) {
      std::uint8_t* const matrix = to + i * size * SizeOf(out.dtype);
      if (!Multiply(LinesOf(a, i, 1, 2), LinesOf(b, i, 2, 1), results, matrix)) fits = false;
    }
  };
  if (n < MaxThreads()) {
    multiply(0, n);
  } else {
    parallel_for(n, 1, kFew / (size * a.shape[2]) + 1, multiply);
  }
  return fits;
}

}  // namespace cpd
