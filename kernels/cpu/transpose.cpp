// SPDX-License-Identifier: Apache-2.0
//
// Transposes a matrix of 32-bit words. Squares with as many rows as a vector has lanes are
// transposed in registers.
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;

/// Exchanges the rows and columns of a square of 2^n x 2^n words in n steps. A step combines rows
/// 2k and 2k + 1: their even words become row k, their odd words row 2^(n - 1) + k. A step thus
/// rotates the binary number (row, column) of each word by one digit, and n steps exchange both.
template <class V>
CPD_FN void transpose_square(Unsigned<V>* rows) {
  using U = Unsigned<V>;
  constexpr int kLanes = Lanes<V>::count;
  const auto odd = [](U x) { return bits_as<U>(bits_as<SplitOf<U>>(x) >> 32); };
  for (int step = 1; step < kLanes; step *= 2) {
    U turned[kLanes];
#pragma GCC unroll 8
    for (int k = 0; k < kLanes / 2; ++k) {
      turned[k] = even_words(rows[2 * k], rows[2 * k + 1]);
      turned[k + kLanes / 2] = even_words(odd(rows[2 * k]), odd(rows[2 * k + 1]));
    }
#pragma GCC unroll 16
    for (int k = 0; k < kLanes; ++k) rows[k] = turned[k];
  }
}

/// Transposes a matrix of 32-bit words word by word.
CPD_FN void transpose_words(int64_t rows, int64_t columns, const uint32_t* from,
                            int64_t from_stride, uint32_t* to, int64_t to_stride) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) to[c * to_stride + r] = from[r * from_stride + c];
  }
}

/// Transposes a square from `from` to `to`, which point to the first word of the square.
template <class V>
CPD_FN void transpose_at(const uint32_t* from, int64_t from_stride, uint32_t* to,
                         int64_t to_stride) {
  using U = Unsigned<V>;
  constexpr int kLanes = Lanes<V>::count;
  U square[kLanes];
#pragma GCC unroll 16
  for (int k = 0; k < kLanes; ++k) square[k] = load<U>(from + k * from_stride);
  transpose_square<V>(square);
#pragma GCC unroll 16
  for (int k = 0; k < kLanes; ++k) store(to + k * to_stride, square[k]);
}

/// Transposes the matrix in squares. The inner loop runs along the rows of the array with the
/// larger row stride, which touches more pages.
template <class V>
CPD_FN void transpose_all(int64_t rows, int64_t columns, const uint32_t* from, int64_t from_stride,
                          uint32_t* to, int64_t to_stride) {
  constexpr int kLanes = Lanes<V>::count;
  if constexpr (kLanes == 1) {
    transpose_words(rows, columns, from, from_stride, to, to_stride);
  } else {
    const int64_t whole_rows = rows - rows % kLanes;
    const int64_t whole_columns = columns - columns % kLanes;
    const auto at = [&](int64_t r, int64_t c) {
      transpose_at<V>(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
    };
    if (from_stride >= to_stride) {
      for (int64_t r = 0; r < whole_rows; r += kLanes) {
        for (int64_t c = 0; c < whole_columns; c += kLanes) {
          // Prefetches by an instruction, because the hardware does not prefetch rows in other
          // memory pages.
          for (int k = 0; k < kLanes; ++k)
            __builtin_prefetch(from + (r + kLanes + k) * from_stride + c);
          at(r, c);
        }
      }
    } else {
      for (int64_t c = 0; c < whole_columns; c += kLanes) {
        for (int64_t r = 0; r < whole_rows; r += kLanes) at(r, c);
      }
    }
    transpose_words(rows - whole_rows, whole_columns, from + whole_rows * from_stride, from_stride,
                    to + whole_rows, to_stride);
    transpose_words(rows, columns - whole_columns, from + whole_columns, from_stride,
                    to + whole_columns * to_stride, to_stride);
  }
}

}  // namespace

void transpose(int64_t rows, int64_t columns, const uint32_t* from, int64_t from_stride,
               uint32_t* to, int64_t to_stride) {
  transpose_all<F>(rows, columns, from, from_stride, to, to_stride);
}

}  // namespace CPD_ISA
}  // namespace cpd
