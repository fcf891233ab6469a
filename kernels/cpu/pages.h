// SPDX-License-Identifier: Apache-2.0
//
// Loops over arrays that are far larger than the caches. A group is four neighboring pages of 4
// KiB. A loop takes one cache line of each page of a group in turn, which uses more of the memory's
// banks than one stream does. Inputs are prefetched one group ahead into L2 and one block ahead
// into L1. Results are written by non-temporal stores. The four pages are processed block by block,
// so that arithmetic overlaps the memory accesses:
//
//   const std::int64_t whole = n - n % kGroup;
//   for_blocks(whole, [&](std::int64_t block) {
//     for_lines(0, kBlock, [&](std::int64_t page, std::int64_t i) {
//       const std::int64_t at = block + page * kPage + i;  // of kLine values
//       prefetch_line(x + at, block);
//       …
//     });
//   });
//
// An ordinary loop must process the remaining n - whole values.
#pragma once

#include <cstdint>

#include "kernels/cpu/elements.h"

namespace cpd {
inline namespace CPD_ISA {

constexpr std::int64_t kLine = 16;    ///< binary32 values in a cache line
constexpr std::int64_t kPage = 1024;  ///< binary32 values in a page
constexpr std::int64_t kPages = 4;    ///< pages in a group
constexpr std::int64_t kGroup = kPages * kPage;

/// Calls body(block) with the offset of each block of kBlock values in the first page of each
/// group. n must be a multiple of kGroup. The other three pages have their blocks kPage, 2 kPage
/// and 3 kPage values later.
template <class Body>
CPD_FN void for_blocks(std::int64_t n, Body body) {
  for (std::int64_t group = 0; group < n; group += kGroup) {
    for (std::int64_t block = 0; block < kPage; block += kBlock) body(group + block);
  }
}

/// Returns the offset that a loop visits in page `page` when it visits offset i in the first page:
/// a later offset in the same block, cyclically. At equal offsets, 4 KiB aliasing would make a load
/// from one page wait for a store to another page.
template <std::int64_t kStep = kLine>
CPD_FN constexpr std::int64_t in_turn(std::int64_t page, std::int64_t i) {
  constexpr std::int64_t kAhead = kStep < kBlock / kPages ? kBlock / kPages : kStep;
  return i - i % kBlock + (i + page * kAhead) % kBlock;
}

/// Visits the values i = begin, begin + kStep, … below end in each of a group's four pages: calls
/// visit(page, in_turn(page, i)) for the four pages, then continues with the next i. kStep must be
/// a multiple of kLine.
template <std::int64_t kStep = kLine, class Visit>
CPD_FN void for_lines(std::int64_t begin, std::int64_t end, Visit visit) {
  for (std::int64_t i = begin; i < end; i += kStep) {
#pragma GCC unroll 4
    for (std::int64_t page = 0; page < kPages; ++page) visit(page, in_turn<kStep>(page, i));
  }
}

/// Returns the offset of the block that for_blocks visits after the block at offset `block`. After
/// the last group of four pages, returns the offset at which the next group would begin.
CPD_FN std::int64_t next_block(std::int64_t block) {
  const std::int64_t next = block + kBlock;
  return next % kPage == 0 ? next + kGroup - kPage : next;
}

/// Prefetches into L2 the cache line that is one group of four pages after p. Some L1 caches cannot
/// hold two groups, because the groups' pages map to the same sets.
CPD_FN void prefetch_group(const float* p) { __builtin_prefetch(p + kGroup, 0, 2); }

/// Prefetches two cache lines for a loop that is at address p in block `block`. The line one group
/// of pages later is fetched into L2. The line one block later, which is already in L2, is fetched
/// into L1.
CPD_FN void prefetch_line(const float* p, std::int64_t block) {
  prefetch_group(p);
  __builtin_prefetch(p + (next_block(block) - block));
}

CPD_FN bool holds_floats(const float* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(float) == 0;
}

/// Writes the results of a loop to y by non-temporal stores. If y is aligned to a cache line,
/// stores go to y directly. Otherwise blocks are collected in a buffer in L1 and written as whole
/// cache lines. Cache lines that contain the boundary of two pages are then prefetched and written
/// in two parts by ordinary stores.
class PageValues {
 public:
  /// Requires holds_floats(y).
  CPD_FN explicit PageValues(float* y) : y_(y) {
    const auto address = reinterpret_cast<std::uintptr_t>(y);
    head_ = static_cast<std::int64_t>((64 - address % 64) % 64 / sizeof(float));
  }

  CPD_FN void enter_block(std::int64_t block) {
    if (head_ == 0 || block % kPage != 0) return;
    for (std::int64_t page = 0; page <= kPages; ++page) {
      __builtin_prefetch(y_ + block + page * kPage, 1);
    }
  }
  /// Stores the lanes of v as values i, i + 1, … of block `block` in memory page `page` of the
  /// group.
  template <class V>
  CPD_FN void put(std::int64_t block, std::int64_t page, std::int64_t i, V v) {
    if (head_ == 0) {
      store_streaming(y_ + block + page * kPage + i, v);
    } else {
      store(rows_[page] + kLine + i, v);
    }
  }
  CPD_CALL void leave_block(std::int64_t block) {
    if (head_ == 0) return;
    for (std::int64_t page = 0; page < kPages; ++page) {
      leave(rows_[page], y_ + block + page * kPage, block % kPage);
    }
  }

 private:
  /// Writes a block of one memory page to `to`. The block begins at value `i` of the page. `row`
  /// has the last cache line of the previous block, followed by the values of this block.
  CPD_FN void leave(float* row, float* to, std::int64_t i) const {
    if (i == 0) copy_few(to, row + kLine, head_);
    for (std::int64_t k = i == 0 ? kLine : 0; k < kBlock; k += kLine) {
      copy_line(to + head_ + k - kLine, row + head_ + k);
    }
    if (i + kBlock == kPage) {
      copy_few(to + head_ + kBlock - kLine, row + head_ + kBlock, kLine - head_);
    } else {
      for (std::int64_t k = 0; k < kLine; k += Lanes<F>::count) {
        store(row + k, load<F>(row + kBlock + k));
      }
    }
  }
  CPD_FN static void copy_line(float* to, const float* from) {
    for (std::int64_t k = 0; k < kLine; k += Lanes<F>::count) {
      store_streaming(to + k, load<F>(from + k));
    }
  }
  CPD_FN static void copy_few(float* to, const float* from, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
  }

  float* y_;
  std::int64_t head_;  ///< values of y before its first whole line
  alignas(64) float rows_[kPages][kLine + kBlock];
};

/// The random integers of a loop: the caller's, or generated ones. Integers are generated one block
/// ahead, so that arithmetic overlaps the memory accesses. If rounding is not stochastic, there are
/// no integers.
template <class R>
class PageIntegers {
 public:
  /// Prepares the random integers for elements first … first + n - 1 of the tensor. n must be a
  /// multiple of kGroup. If `given` is not null, it holds the caller's integers.
  CPD_FN PageIntegers(const RoundPlan& plan, std::int64_t first, std::int64_t n,
                      const std::uint32_t* given)
      : bits_(plan.random_bits),
        seed_(plan.seed),
        stream_(plan.stream),
        first_(first),
        n_(n),
        given_(given) {
    if (!kFresh || given != nullptr || n == 0) return;
    for (std::int64_t page = 0; page < kPages; ++page) draw(0, page);
  }

  /// Returns the random integers for the block of kBlock elements at offset `block`, in memory page
  /// `page` of a group of four pages.
  CPD_FN const std::uint32_t* of(std::int64_t block, std::int64_t page) const {
    if (!kFresh || given_ != nullptr) return given_ + block + page * kPage;
    return run_[block / kBlock % 2][page];
  }

  /// Generates the random integers for the block of kBlock elements that for_blocks visits after
  /// `block`, in memory page `page` of a group of four pages.
  CPD_FN void draw_ahead(std::int64_t block, std::int64_t page) {
    if (!kFresh || given_ != nullptr) return;
    const std::int64_t next = next_block(block);
    if (next < n_) draw(next, page);
  }

 private:
  static constexpr bool kFresh = R::mode == Rounding::stochastic;

  CPD_FN void draw(std::int64_t block, std::int64_t page) {
    random_run(bits_, seed_, stream_, first_ + block + page * kPage, kBlock,
               run_[block / kBlock % 2][page]);
  }

  int bits_;
  std::uint64_t seed_, stream_;
  std::int64_t first_, n_;
  const std::uint32_t* given_;
  alignas(64) std::uint32_t run_[2][kPages][kFresh ? kBlock : 1];
};

/// Calls visit(page, i, random) for each cache line of one block in each of the four pages of a
/// group. i is the line's offset in the page, and `random` points to the line's random integers.
template <class R, class Visit>
CPD_FN void for_lines(PageIntegers<R>& integers, std::int64_t block, Visit visit) {
  constexpr std::int64_t kPart = kBlock / kPages;
  for (std::int64_t part = 0; part < kPages; ++part) {
    integers.draw_ahead(block, part);
    for_lines(part * kPart, (part + 1) * kPart, [&](std::int64_t page, std::int64_t i) {
      visit(page, i, integers.of(block, page) + i);
    });
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
