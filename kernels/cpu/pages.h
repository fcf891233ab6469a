// SPDX-License-Identifier: Apache-2.0
//
// How loops walk arrays far larger than the caches: groups of four pages of 4 KiB side by side, a
// cache line of each in turn, which keeps more of the memory's banks at work than one stream does.
// What is read is asked for one group ahead, results go past the caches, and blocks of each page
// are done with one after the other, so that arithmetic fills the time that memory takes:
//
//   const std::int64_t whole = n - n % kGroup;
//   for_blocks(whole, [&](std::int64_t block) {
//     for_lines(0, kBlock, [&](std::int64_t page, std::int64_t i) {
//       const std::int64_t at = block + page * kPage + i;  // of kLine values
//       prefetch_group(x + at);
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

/// Calls visit(page, i) for i = begin, begin + kStep, … below end, of each i for all pages in turn.
/// kStep: a multiple of kLine.
template <std::int64_t kStep = kLine, class Visit>
CPD_FN void for_lines(std::int64_t begin, std::int64_t end, Visit visit) {
  for (std::int64_t i = begin; i < end; i += kStep) {
#pragma GCC unroll 4
    for (std::int64_t page = 0; page < kPages; ++page) visit(page, i);
  }
}

/// Asks for the line that lies one group behind p.
CPD_FN void prefetch_group(const float* p) { __builtin_prefetch(p + kGroup); }

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
    const std::int64_t next = block + kBlock;
    const bool is_last = next % kPage == 0;
    const std::int64_t begin = is_last ? next + kGroup - kPage : next;
    if (begin < n_) draw(begin, page);
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
