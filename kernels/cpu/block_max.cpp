// SPDX-License-Identifier: Apache-2.0
//
// Finds the largest magnitudes of blocks, for scaled formats.
#include "kernels/cpu/largest.h"
#include "kernels/cpu/pages.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;

/// Returns the bit pattern of |x|. Without kWithNan, returns 0 for a NaN.
template <bool kWithNan, class V>
CPD_FN Signed<V> counted(V x) {
  using I = Signed<V>;
  const I a = (I)(bits_as<Unsigned<V>>(x) & splat<Unsigned<V>>(Pattern<V>::magnitude));
  return kWithNan ? a : select(a > splat<I>(Pattern<V>::infinity), I{}, a);
}

/// Returns, for each lane, the largest |x| of the elements that the lane reads. x consists of whole
/// groups of pages (pages.h).
template <bool kWithNan>
CPD_FN Signed<F> largest_in_pages(int64_t n, const float* x) {
  constexpr int64_t kVectors = kLine / Lanes<F>::count;
  Signed<F> most[kPages] = {};
  for_blocks(n, [&](int64_t block) {
    for_lines(0, kBlock, [&](int64_t page, int64_t i) {
      const float* line = x + block + page * kPage + i;
      prefetch_line(line, block);
      for (int64_t k = 0; k < kVectors; ++k) {
        const F v = load<F>(line + k * Lanes<F>::count);
        most[page] = max(most[page], counted<kWithNan>(v));
      }
    });
  });
  return max(max(most[0], most[1]), max(most[2], most[3]));
}

template <bool kWithNan>
CPD_FN float largest_in(int64_t n, const float* x) {
  constexpr int kLanes = Lanes<F>::count;
  int64_t i = n - n % kGroup;
  Signed<F> most = largest_in_pages<kWithNan>(i, x);
  for (; i + kLanes <= n; i += kLanes) most = max(most, counted<kWithNan>(load<F>(x + i)));
  std::int32_t largest = largest_lane(most);
  for (; i < n; ++i) largest = max(largest, counted<kWithNan>(x[i]));
  return bits_as<float>(largest);
}

/// Stores the largest |x| of as many blocks as a vector has lanes. Each block has kVectors whole
/// vectors. All blocks are neighbors in memory, or kSide blocks are neighbors in each of several
/// memory pages (pages.h). Does not prefetch x. x is one range of a larger array, and the pass over
/// the elements of the range before has prefetched x.
template <class V, bool kWithNan, int kVectors, int64_t kSide>
CPD_FN void some_block_max(const float* x, float* largest) {
  constexpr int kLanes = Lanes<V>::count;
  constexpr int64_t kRunOf = int64_t{kVectors} * kLanes;
  Signed<V> most[kLanes];
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) {
    const float* block = x + lane / kSide * kPage + lane % kSide * kRunOf;
    most[lane] = counted<kWithNan>(load<V>(block));
    for (int k = 1; k < kVectors; ++k) {
      most[lane] = max(most[lane], counted<kWithNan>(load<V>(block + k * kLanes)));
    }
  }
  const Signed<V> each = largest_lanes<V>(most);
  for (int64_t page = 0; page * kSide < kLanes; ++page) {
    copy(largest + page * (kPage / kRunOf), reinterpret_cast<const float*>(&each) + page * kSide,
         kSide);
  }
}

template <class V, bool kWithNan, int kVectors>
CPD_FN int64_t short_block_max(int64_t blocks, const float* x, float* largest) {
  constexpr int kLanes = Lanes<V>::count;
  constexpr int64_t kSide = kLanes / kPages;
  constexpr int64_t kRunOf = int64_t{kVectors} * kLanes;
  const int64_t whole = blocks - blocks % (kGroup / kRunOf);
  for (int64_t group = 0; group < whole; group += kGroup / kRunOf) {
    for (int64_t b = group; b < group + kPage / kRunOf; b += kSide) {
      some_block_max<V, kWithNan, kVectors, kSide>(x + b * kRunOf, largest + b);
    }
  }
  int64_t b = whole;
  for (; b + kLanes <= blocks; b += kLanes) {
    some_block_max<V, kWithNan, kVectors, kLanes>(x + b * kRunOf, largest + b);
  }
  return b;
}

template <bool kWithNan, class V>
CPD_FN int64_t short_blocks_max(int64_t run, int64_t blocks, const float* x, float* largest) {
  if constexpr (Lanes<V>::count > 1) {
    const int64_t vectors = run % Lanes<V>::count == 0 ? run / Lanes<V>::count : 0;
    if (vectors == 1) return short_block_max<V, kWithNan, 1>(blocks, x, largest);
    if (vectors == 2) return short_block_max<V, kWithNan, 2>(blocks, x, largest);
    if (vectors == 4) return short_block_max<V, kWithNan, 4>(blocks, x, largest);
    if (vectors == 8) return short_block_max<V, kWithNan, 8>(blocks, x, largest);
  }
  return 0;
}

template <bool kWithNan>
CPD_FN void block_max_of(int64_t run, int64_t n, const float* x, float* largest) {
  const int64_t whole = n / run;
  int64_t b = short_blocks_max<kWithNan, F>(run, whole, x, largest);
  for (; b < whole; ++b) largest[b] = largest_in<kWithNan>(run, x + b * run);
  if (whole * run < n) largest[whole] = largest_in<kWithNan>(n - whole * run, x + whole * run);
}

/// Finds the largest |x| of each of n columns of `rows` rows. Keeps up to four vectors of columns
/// in registers over all rows.
template <bool kWithNan>
CPD_FN void column_max_of(int64_t rows, int64_t stride, int64_t n, const float* x, float* largest) {
  constexpr int kLanes = Lanes<F>::count;
  using I = Signed<F>;
  int64_t j = 0;
  const auto columns = [&]<int kCount>() {
    for (; j + kCount * kLanes <= n; j += kCount * kLanes) {
      I most[kCount] = {};
      for (int64_t i = 0; i < rows; ++i) {
        const float* row = x + i * stride + j;
        for (int k = 0; k < kCount; ++k) {
          most[k] = max(most[k], counted<kWithNan>(load<F>(row + k * kLanes)));
        }
      }
      for (int k = 0; k < kCount; ++k) store(largest + j + k * kLanes, most[k]);
    }
  };
  columns.template operator()<4>();
  columns.template operator()<2>();
  columns.template operator()<1>();
  for (; j < n; ++j) {
    std::int32_t most = 0;
    for (int64_t i = 0; i < rows; ++i) most = max(most, counted<kWithNan>(x[i * stride + j]));
    largest[j] = bits_as<float>(most);
  }
}

}  // namespace

void block_max(bool with_nan, int64_t run, int64_t n, const float* x, float* largest) {
  if (with_nan) {
    block_max_of<true>(run, n, x, largest);
  } else {
    block_max_of<false>(run, n, x, largest);
  }
}

void column_max(bool with_nan, int64_t rows, int64_t stride, int64_t n, const float* x,
                float* largest) {
  if (with_nan) {
    column_max_of<true>(rows, stride, n, x, largest);
  } else {
    column_max_of<false>(rows, stride, n, x, largest);
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
