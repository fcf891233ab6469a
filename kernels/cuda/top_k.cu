// SPDX-License-Identifier: Apache-2.0
//
// Selects the values of largest magnitude on a GPU. The limit is the least selected magnitude. It
// is found digit by digit, from counts of all values. A span is a sequence of tiles of the layer.
// The selected values of each span are counted, and the counts of all earlier spans are added up.
// So each selected value gets its rank in the order of indices, independently of the order in which
// blocks and threads run.
//
// Memory traffic for each value: 20 bytes to read v (three counts of digits, the counts of spans,
// rounding) and 4 bytes to write the term. With a residual, 12 bytes more: the first count reads x
// and the residual and writes v, and rounding writes the next residual. Counting losses reads x
// once more. Counting bytes reads v once more, as does gathering values that another codec rounds.
#include "cpd/numeric/scaled/gap_codes.h"
#include "cpd/numeric/scaled/largest_limit.h"
#include "kernels/cuda/message_tile.cuh"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

constexpr int kOwn = kCodeTile / kThreads;  ///< neighboring values of a tile that a thread ranks

struct TopKTile {
  float values[kCodeTile + kThreads];  ///< at slot_of
  std::int32_t ranks[kCodeTile];       ///< among the tile's selected values; -1: not selected
  std::uint32_t counts[2][kThreads];
  std::uint16_t places[kCodeTile];  ///< of the values that are kept
  std::uint32_t bits;
};

/// Returns the index in shared memory of value j of a tile. Padding lets threads that each read
/// kOwn neighboring values use different banks.
CPD_FN int slot_of(int j) { return j + j / kOwn; }

CPD_FN TopKSpan operator+(const TopKSpan& a, const TopKSpan& b) {
  return {a.above + b.above, a.equal + b.equal};
}

/// Replaces cells[0], which has one value for each thread of the block, by its inclusive prefix
/// sums. Uses cells[1] as temporary memory.
template <class T>
CPD_DEVICE void add_up(const ThreadBlock& block, T (&cells)[2][kThreads]) {
  static_assert(kThreads == 256, "an even number of steps, so that the sums end in cells[0]");
  int from = 0;
  CPD_ROLLED for (int step = 1; step < kThreads; step *= 2, from ^= 1) {
    block.each([&](int thread) {
      T sum = cells[from][thread];
      if (thread >= step) sum = cells[from][thread - step] + sum;
      cells[from ^ 1][thread] = sum;
    });
  }
}

/// Returns the number of spans (ranges of call.span tiles) of the layer.
CPD_FN std::int64_t spans_of(const TopKCall& call) {
  return (tiles_of(call.n) + call.span - 1) / call.span;
}

// --- the limit -----------------------------------------------------------------------------------

// --- ranks ---------------------------------------------------------------------------------------

/// Returns how many of the values counted in `counted` are selected: all values above the limit
/// (the least selected magnitude), and up to limit.equals of the values equal to the limit.
CPD_FN std::int64_t kept_of(const LargestLimit& limit, const TopKSpan& counted) {
  const auto equal = static_cast<std::int64_t>(counted.equal);
  return static_cast<std::int64_t>(counted.above) + (equal < limit.equals ? equal : limit.equals);
}

/// Ranks the selected values of tiles `tile` … `end` - 1; `before` has the counts of the values
/// before these tiles. For each tile, calls run(begin, count, first, kept) with the tile's first
/// value, its number of values, the rank of its first selected value, and its number of selected
/// values.
template <class Run>
CPD_DEVICE void for_ranked_tiles(const ThreadBlock& block, const TopKCall& call, std::int64_t tile,
                                 std::int64_t end, TopKSpan before, TopKTile& memory, Run run) {
  const LargestLimit limit = call.search->limit;
  CPD_ROLLED for (; tile < end; ++tile) {
    const std::int64_t begin = tile * kCodeTile;
    const int count = tile_count(begin, call.n);
    const auto for_own = [&](int thread, auto take) {
      for (int j = thread * kOwn; j < (thread + 1) * kOwn && j < count; ++j) {
        take(j, pattern_of(memory.values[slot_of(j)]));
      }
    };
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        memory.values[slot_of(j)] = call.values()[begin + j];
      }
    });
    block.each([&](int thread) {
      std::uint32_t counts = 0;  // above the limit, and in the high half with its pattern
      for_own(thread, [&](int, std::uint32_t pattern) {
        if (pattern > limit.pattern) ++counts;
        if (pattern == limit.pattern) counts += 1U << 16;
      });
      memory.counts[0][thread] = counts;
    });
    add_up(block, memory.counts);
    const std::uint32_t all = memory.counts[0][kThreads - 1];
    block.each([&](int thread) {
      const std::uint32_t counts = thread == 0 ? 0 : memory.counts[0][thread - 1];
      TopKSpan here{before.above + (counts & 0xFFFF), before.equal + (counts >> 16)};
      for_own(thread, [&](int j, std::uint32_t pattern) {
        const bool above = pattern > limit.pattern;
        const bool equal = pattern == limit.pattern;
        const bool is_kept =
            above || (equal && static_cast<std::int64_t>(here.equal) < limit.equals);
        const std::int64_t rank = kept_of(limit, here) - kept_of(limit, before);
        memory.ranks[j] = is_kept ? static_cast<std::int32_t>(rank) : -1;
        if (above) ++here.above;
        if (equal) ++here.equal;
      });
    });
    const TopKSpan through{before.above + (all & 0xFFFF), before.equal + (all >> 16)};
    const std::int64_t first = kept_of(limit, before);
    run(begin, count, first, static_cast<int>(kept_of(limit, through) - first));
    before = through;
  }
}

/// Ranks the selected values of the spans that this thread block handles (ranges of call.span
/// tiles). Calls `run` for each tile, as for_ranked_tiles does.
template <class Run>
CPD_DEVICE void for_ranked_spans(const ThreadBlock& block, const TopKCall& call, TopKTile& memory,
                                 Run run) {
  const std::int64_t tiles = tiles_of(call.n);
  CPD_ROLLED for (std::int64_t s = block.number; s < spans_of(call); s += block.count) {
    const std::int64_t end = (s + 1) * call.span < tiles ? (s + 1) * call.span : tiles;
    for_ranked_tiles(block, call, s * call.span, end, call.spans[s], memory, run);
  }
}

// --- terms ---------------------------------------------------------------------------------------

/// Stores a term of each value in y: term_of(v, rank) for a selected value v, +0 for other values.
/// With a residual, also stores the next residual: the error of the term.
template <class TermOf>
CPD_DEVICE void form_terms(const ThreadBlock& block, const TopKCall& call, float* y,
                           SegmentCounts* counts, TopKTile& memory, TermOf term_of) {
  for_ranked_spans(
      block, call, memory, [&](std::int64_t begin, int count, std::int64_t first, int) {
        block.each([&](int thread) {
          LossCounts lost;
          CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
            const std::int64_t i = begin + j;
            const float v = memory.values[slot_of(j)];
            const bool is_kept = memory.ranks[j] >= 0;
            const float term = is_kept ? term_of(v, first + memory.ranks[j]) : 0;
            if (counts != nullptr) lost.take(call.kept == nullptr ? v : call.x[i], term);
            y[i] = term;
            if (call.kept == nullptr) continue;
            call.next[i] = is_kept ? error_of(v, shifted(term * call.unit, -call.shift)) : v;
          }
          if (counts != nullptr) lost.add_to(block, *counts);
        });
      });
}

// --- places --------------------------------------------------------------------------------------

// --- kernels -----------------------------------------------------------------------------------

/// One pass of the search for the limit (the least selected magnitude), whose higher digits are
/// known. Takes the values that agree with it in these digits, and counts them by their next digit.
__global__ void __launch_bounds__(kThreads)
    count_digits(const __grid_constant__ TopKCall call, int digit) {
  __shared__ std::uint32_t bins[kMostDigit + 1];
  const ThreadBlock block;
  const std::uint32_t last = last_digit(digit);
  const std::uint32_t found = call.search->limit.pattern;
  const std::uint32_t known = digit == 0 ? 0 : ~0U << digit_shift(digit - 1);
  block.each([&](int thread) {
    for (std::uint32_t bin = thread; bin <= last; bin += kThreads) bins[bin] = 0;
  });
  for_tiles_of(block, call.n, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const std::int64_t i = begin + j;
        if (digit == 0 && call.kept != nullptr) call.sum[i] = call.x[i] + call.kept[i];
        const std::uint32_t pattern = pattern_of(call.values()[i]);
        if ((pattern & known) != found) continue;
        block.tally(&bins[pattern >> digit_shift(digit) & last], 1U);
      }
    });
  });
  block.each([&](int thread) {
    for (std::uint32_t bin = thread; bin <= last; bin += kThreads) {
      if (bins[bin] == 0) continue;
      block.tally(&call.counts_of[digit].of[bin], static_cast<unsigned long long>(bins[bin]));
    }
  });
}
/// Determines one digit of the limit (the least selected magnitude) from the counts of
/// count_digits, in a single thread block. Each thread adds the counts of some successive digits;
/// the first thread has the highest digits.
__global__ void __launch_bounds__(kThreads)
    find_digit(const __grid_constant__ TopKCall call, int digit) {
  __shared__ std::int64_t sums[2][kThreads];
  const ThreadBlock block;
  const auto last = static_cast<int>(last_digit(digit));
  const int per = (last + 1) / kThreads;
  const unsigned long long* const counts = call.counts_of[digit].of;
  const std::int64_t wanted = digit == 0 ? call.k : call.search->limit.equals;
  block.each([&](int thread) {
    std::int64_t sum = 0;
    for (int b = 0; b < per; ++b) {
      sum += static_cast<std::int64_t>(counts[last - per * thread - b]);
    }
    sums[0][thread] = sum;
  });
  add_up(block, sums);
  block.each([&](int thread) {
    const std::int64_t before = thread == 0 ? 0 : sums[0][thread - 1];
    if (before >= wanted || wanted > sums[0][thread]) return;
    LargestLimit limit{call.search->limit.pattern, wanted - before};
    int bin = last - per * thread;
    for (; static_cast<std::int64_t>(counts[bin]) < limit.equals; --bin) {
      limit.equals -= static_cast<std::int64_t>(counts[bin]);
    }
    limit.pattern |= static_cast<std::uint32_t>(bin) << digit_shift(digit);
    call.search->limit = digit + 1 == kPatternDigits ? with_non_finite(limit) : limit;
  });
}
/// Counts, in each span (a range of call.span tiles), the values above the limit and the values
/// equal to the limit (the least selected magnitude).
__global__ void __launch_bounds__(kThreads) count_spans(const __grid_constant__ TopKCall call) {
  const ThreadBlock block;
  const std::uint32_t limit = call.search->limit.pattern;
  const std::int64_t size = std::int64_t{call.span} * kCodeTile;
  CPD_ROLLED for (std::int64_t s = block.number; s < spans_of(call); s += block.count) {
    const std::int64_t end = (s + 1) * size < call.n ? (s + 1) * size : call.n;
    block.each([&](int thread) {
      std::uint32_t above = 0;
      std::uint32_t equal = 0;
      std::uint32_t largest = 0;
      CPD_ROLLED for (std::int64_t i = s * size + thread; i < end; i += kThreads) {
        const std::uint32_t pattern = pattern_of(call.values()[i]);
        if (pattern > limit) ++above;
        if (pattern == limit) ++equal;
        const bool counts = pattern >= limit && pattern < Pattern<float>::infinity;
        if (counts && pattern > largest) largest = pattern;
      }
      block.add(&call.spans[s].above, above);
      block.add(&call.spans[s].equal, equal);
      block.raise(&call.search->largest, largest);
    });
  }
}
/// Replaces the counts of each span (a range of call.span tiles) by the sums of the counts of all
/// earlier spans, in a single thread block. Also counts all selected values.
__global__ void __launch_bounds__(kThreads) sum_spans(const __grid_constant__ TopKCall call) {
  __shared__ TopKSpan sums[2][kThreads];
  const ThreadBlock block;
  const std::int64_t all = spans_of(call) + 1;
  TopKSpan before{};
  CPD_ROLLED for (std::int64_t first = 0; first < all; first += kThreads * kOwn) {
    const auto for_own = [&](int thread, auto run) {
      for (std::int64_t s = first + thread * kOwn; s < first + (thread + 1) * kOwn && s < all;
           ++s) {
        run(call.spans[s]);
      }
    };
    block.each([&](int thread) {
      TopKSpan sum{};
      for_own(thread, [&](const TopKSpan& span) { sum = sum + span; });
      sums[0][thread] = sum;
    });
    add_up(block, sums);
    const TopKSpan through = before + sums[0][kThreads - 1];
    block.each([&](int thread) {
      TopKSpan sum = thread == 0 ? before : before + sums[0][thread - 1];
      for_own(thread, [&](TopKSpan& span) {
        const TopKSpan own = span;
        span = sum;
        sum = sum + own;
      });
    });
    before = through;
  }
  block.each([&](int thread) {
    if (thread == 0) call.search->kept = kept_of(call.search->limit, call.spans[all - 1]);
  });
}
/// Stores each selected value in y, cast by call.cast, and +0 for other values. Stochastic rounding
/// takes the random integer whose number is the value's rank.
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    round_kept(const __grid_constant__ TopKCall call, float* y, SegmentCounts* counts) {
  __shared__ TopKTile memory;
  const ThreadBlock block;
  form_terms(block, call, y, counts, memory, [&](float v, std::int64_t rank) {
    return cast_shifted<mode>(v, call.shift, element_draw<mode>(call.cast, call.stream, rank),
                              call.cast);
  });
}
/// Stores the terms call.terms, which another codec has rounded, at the selected values' indices in
/// y, and +0 elsewhere.
__global__ void __launch_bounds__(kThreads)
    place_terms(const __grid_constant__ TopKCall call, float* y, SegmentCounts* counts) {
  __shared__ TopKTile memory;
  const ThreadBlock block;
  form_terms(block, call, y, counts, memory,
             [&](float, std::int64_t rank) { return call.terms[rank]; });
}
/// Writes the selected values to `values`. A value's rank is its index there.
__global__ void __launch_bounds__(kThreads)
    gather_kept(const __grid_constant__ TopKCall call, float* values) {
  __shared__ TopKTile memory;
  const ThreadBlock block;
  for_ranked_spans(block, call, memory, [&](std::int64_t, int count, std::int64_t first, int) {
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        if (memory.ranks[j] < 0) continue;
        values[first + memory.ranks[j]] = memory.values[slot_of(j)];
      }
    });
  });
}
/// Counts, for each block of call.block values, the selected values and the bits that encode their
/// indices. An index is encoded as the gap to the previous selected index.
__global__ void __launch_bounds__(kThreads)
    count_places(const __grid_constant__ TopKCall call, TopKPlaces* places) {
  __shared__ TopKTile memory;
  const ThreadBlock block;
  const std::int64_t tiles = tiles_of(call.n);
  const std::int64_t per = call.block / kCodeTile;
  const LargestLimit limit = call.search->limit;
  CPD_ROLLED for (std::int64_t number = block.number; number * per < tiles; number += block.count) {
    const std::int64_t tile = number * per;
    const std::int64_t end = tile + per < tiles ? tile + per : tiles;
    const std::int64_t n = (end < tiles ? end * kCodeTile : call.n) - tile * kCodeTile;
    const TopKSpan& from = call.spans[tile / call.span];
    const TopKSpan& to = call.spans[end < tiles ? end / call.span : spans_of(call)];
    const std::int64_t kept = kept_of(limit, to) - kept_of(limit, from);
    const int low = kept == 0 ? 0 : gap_low_bits(n, kept);
    std::int64_t next = tile * kCodeTile;  // the place after the last one
    block.each([&](int thread) {
      if (thread == 0) memory.bits = 0;
    });
    const auto count_gaps = [&](std::int64_t begin, int count, std::int64_t, int here) {
      block.each([&](int thread) {
        CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
          if (memory.ranks[j] < 0) continue;
          memory.places[memory.ranks[j]] = static_cast<std::uint16_t>(j);
        }
      });
      const std::int64_t after = here == 0 ? next : begin + memory.places[here - 1] + 1;
      block.each([&](int thread) {
        CPD_ROLLED for (int r = thread; r < here; r += kThreads) {
          const std::int64_t free = r == 0 ? next : begin + memory.places[r - 1] + 1;
          const std::int64_t gap = begin + memory.places[r] - free;
          block.tally(&memory.bits, static_cast<std::uint32_t>(gap_bits(gap, low)));
        }
      });
      next = after;
    };
    for_ranked_tiles(block, call, tile, end, from, memory, count_gaps);
    block.each([&](int thread) {
      if (thread == 0) places[number] = {static_cast<std::uint32_t>(kept), memory.bits};
    });
  }
}

}  // namespace

int select_top_k(const Launch& launch, const TopKCall& call) {
  int status = cudaSuccess;
  if (!call.goes_on) {
    const auto* const end = reinterpret_cast<std::uint8_t*>(call.spans + spans_of(call) + 1);
    status = clear(launch, call.search, end - reinterpret_cast<std::uint8_t*>(call.search));
  }
  const auto start = [&](auto kernel, std::int64_t blocks, const auto&... more) {
    if (status == cudaSuccess) status = start_tiles(launch, kernel, blocks, call, more...);
  };
  for (int digit = 0; digit < kPatternDigits; ++digit) {
    start(count_digits, tiles_of(call.n), digit);
    start(find_digit, 1, digit);
  }
  start(count_spans, spans_of(call));
  start(sum_spans, 1);
  return status;
}

int round_top_k(const Launch& launch, const TopKCall& call) {
  if (call.terms != nullptr) {
    return start_tiles(launch, place_terms, spans_of(call), call, call.y, call.counts);
  }
  int status = cudaSuccess;
  with_mode(call.cast.mode, [&]<Rounding mode>() {
    status = start_tiles(launch, round_kept<mode>, spans_of(call), call, call.y, call.counts);
  });
  return status;
}

int gather_top_k(const Launch& launch, const TopKCall& call) {
  return start_tiles(launch, gather_kept, spans_of(call), call, call.gathered);
}

int count_top_k(const Launch& launch, const TopKCall& call) {
  return start_tiles(launch, count_places, (call.n + call.block - 1) / call.block, call,
                     call.places);
}

}  // namespace cpd::cuda
