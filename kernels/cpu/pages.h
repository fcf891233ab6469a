// SPDX-License-Identifier: Apache-2.0
//
// How loops walk arrays far larger than the caches: groups of four pages of 4 KiB side by side, a
// cache line of each in turn, which keeps more of the memory's banks at work than one stream does.
// What is read is asked for one group ahead into the second cache and one block ahead into the
// first, results go past the caches, and blocks of each page are done with one after the other, so
// that arithmetic fills the time that memory takes:
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
// leaves less than kGroup values to an ordinary loop.
#pragma once

#include <cstdint>

#include "kernels/cpu/elements.h"

namespace cpd {
inline namespace CPD_ISA {

constexpr std::int64_t kLine = 16;    ///< binary32 values of a cache line
constexpr std::int64_t kPage = 1024;  ///< and of a page
constexpr std::int64_t kPages = 4;    ///< pages side by side
constexpr std::int64_t kGroup = kPages * kPage;

/// Calls body(block) for each block of kBlock values of the first pages of n values, whole groups;
/// those of the other pages stand kPage, 2 kPage, 3 kPage values further.
template <class Body>
CPD_FN void for_blocks(std::int64_t n, Body body) {
  for (std::int64_t group = 0; group < n; group += kGroup) {
    for (std::int64_t block = 0; block < kPage; block += kBlock) body(group + block);
  }
}

/// Where a page is when the first one is at i: further on in the same block, in a circle. A store
/// and a load that lie 4 KiB, 8 KiB, … apart look the same to a CPU at first, and the load of one
/// page would wait for the store of another.
template <std::int64_t kStep = kLine>
CPD_FN constexpr std::int64_t in_turn(std::int64_t page, std::int64_t i) {
  constexpr std::int64_t kAhead = kStep < kBlock / kPages ? kBlock / kPages : kStep;
  return i - i % kBlock + (i + page * kAhead) % kBlock;
}

/// Calls visit(page, in_turn(page, i)) for i = begin, begin + kStep, … below end, of each i for all
/// pages. kStep: a multiple of kLine.
template <std::int64_t kStep = kLine, class Visit>
CPD_FN void for_lines(std::int64_t begin, std::int64_t end, Visit visit) {
  for (std::int64_t i = begin; i < end; i += kStep) {
#pragma GCC unroll 4
    for (std::int64_t page = 0; page < kPages; ++page) visit(page, in_turn<kStep>(page, i));
  }
}

/// The block that a walk comes to after this one, or would if its last group were not the last.
CPD_FN std::int64_t next_block(std::int64_t block) {
  const std::int64_t next = block + kBlock;
  return next % kPage == 0 ? next + kGroup - kPage : next;
}

/// Asks for the line that lies one group behind p, into the second cache: the first of some CPUs
/// has no room for two groups, whose pages take the same sets of it.
CPD_FN void prefetch_group(const float* p) { __builtin_prefetch(p + kGroup, 0, 2); }

/// Of a walk in `block`, which comes to the line at p: asks for the one a group behind it, and for
/// that of the next block, which came to the second cache by then, into the first.
CPD_FN void prefetch_line(const float* p, std::int64_t block) {
  prefetch_group(p);
  __builtin_prefetch(p + (next_block(block) - block));
}

CPD_FN bool holds_floats(const float* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(float) == 0;
}

/// Where the values of a walk go, past the caches: to y itself where it begins with a cache line,
/// else block by block through the first cache, from which whole lines are written. Lines in which
/// a page begins are then written in two parts, and asked for before.
class PageValues {
 public:
  /// holds_floats(y).
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
  /// Values i, i + 1, … of the block of one page.
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
  /// A block of one page, number `i` in it, whose first value belongs at `to`. Before it in the row
  /// lies the last line of the block before.
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
  std::int64_t head_;  ///< values before the first line that y begins
  alignas(64) float rows_[kPages][kLine + kBlock];
};

/// The random integers of a walk: given ones, or fresh ones of a plan, which are drawn a block
/// ahead so that arithmetic fills the time that memory takes. For other modes there are none.
template <class R>
class PageIntegers {
 public:
  /// Of `n` values, whole groups, of which the first has the number `first`.
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

  /// Those of a block of one page.
  CPD_FN const std::uint32_t* of(std::int64_t block, std::int64_t page) const {
    if (!kFresh || given_ != nullptr) return given_ + block + page * kPage;
    return run_[block / kBlock % 2][page];
  }

  /// Draws those of the next block of one page.
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

/// for_lines over a block, as visit(page, i, random).
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
