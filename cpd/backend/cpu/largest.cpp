// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/largest.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/base/parallel.h"
#include "cpd/numeric/scaled/largest_limit.h"

namespace cpd {
namespace {

constexpr std::uint32_t kMagnitude = Pattern<float>::magnitude;
constexpr std::uint32_t kInfinity = Pattern<float>::infinity;
constexpr std::int64_t kStep = 4096;
constexpr std::int64_t kSampled = std::int64_t{1} << 14;  // the fewest values that are sampled

std::uint32_t PatternOf(float value) { return pattern_of(value); }

/// Finds digit number `place` of the limit, the bit pattern from which on values are selected.
/// at(i) returns one of n patterns whose higher digits all equal the limit's. Returns the number of
/// these patterns that have the digit found.
template <class At>
std::int64_t FindDigit(int place, std::int64_t n, At at, LargestLimit& limit) {
  const int shift = digit_shift(place);
  std::uint32_t digit = last_digit(place);
  std::int64_t counts[kMostDigit + 1] = {};
  for (std::int64_t i = 0; i < n; ++i) ++counts[at(i) >> shift & last_digit(place)];
  for (; counts[digit] < limit.equals; --digit) limit.equals -= counts[digit];
  limit.pattern |= digit << shift;
  return counts[digit];
}

/// Returns the limit (the bit pattern from which on values are selected) for the k >= 1 largest of
/// n patterns at(i). The limit is found one digit after the other.
template <class At>
LargestLimit LimitOf(std::int64_t n, std::int64_t k, At at) {
  LargestLimit limit{0, k};
  std::vector<std::uint32_t> same(static_cast<std::size_t>(FindDigit(0, n, at, limit)) + 1);
  // Collects in `same` the patterns that equal the limit in all digits found so far. To avoid
  // branches, writes every pattern to the end of `same`, but lengthens `same` only if the pattern
  // equals the limit.
  const auto narrow = [&](int place, auto from) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t pattern = from(i);
      same[count] = pattern;
      count += pattern >> digit_shift(place) == limit.pattern >> digit_shift(place) ? 1 : 0;
    }
    n = count;
  };
  narrow(0, at);
  const auto stored = [&](std::int64_t i) { return same[i]; };
  FindDigit(1, n, stored, limit);
  narrow(1, stored);
  FindDigit(2, n, stored, limit);
  return limit;
}

/// Returns a first guess of the limit, the bit pattern (1 … kInfinity) from which on values are
/// selected. The guess is taken from a sample of the values, so that somewhat more than k values
/// are expected to reach it.
std::uint32_t GuessOf(const Summands& of, std::int64_t k) {
  const std::int64_t count = std::clamp(of.n / 16, std::int64_t{1024}, kSampled);
  std::vector<std::uint32_t> sample(static_cast<std::size_t>(count));
  Guarded([&] {
    for (std::int64_t s = 0; s < count; ++s) {
      // The sample is spread evenly over the layer, but without a fixed stride, because a layer may
      // be periodic.
      const std::int64_t i = of.n / count * s + s * 7919 % (of.n / count);
      sample[s] = PatternOf(of.r == nullptr ? of.x[i] : of.x[i] + of.r[i]);
    }
  });
  const double share = static_cast<double>(k) / static_cast<double>(of.n);
  const double mean = share * static_cast<double>(count);
  const auto rank = static_cast<std::int64_t>(mean + 4 * std::sqrt(mean) + 8);
  if (rank >= count) return 1;
  std::ranges::nth_element(sample, sample.begin() + rank, std::greater<>());
  return std::clamp(sample[rank], std::uint32_t{1}, kInfinity);
}

/// Appends to `to` the values v[found[0]], v[found[1]], …, and as their indices in the layer first
/// + found[0], first + found[1], ….
void Append(std::int64_t first, std::span<const std::uint32_t> found, const float* v,
            Selection& to) {
  const std::size_t size = to.places.size();
  to.places.resize(size + found.size());
  to.values.resize(size + found.size());
  for (std::size_t p = 0; p < found.size(); ++p) {
    to.places[size + p] = first + found[p];
    to.values[size + p] = v[found[p]];
  }
}

void Append(const Selection& part, Selection& to) {
  to.places.insert(to.places.end(), part.places.begin(), part.places.end());
  to.values.insert(to.values.end(), part.values.begin(), part.values.end());
}

/// Returns the number of values whose magnitude has a bit pattern of at least `least`. If up to
/// `most` values do, appends these values to `to`. If of.r is not null, each value is of.x[i] +
/// of.r[i], and all these sums are written to of.sum.
std::int64_t Reaching(const Summands& of, std::uint32_t least, std::int64_t most, Selection& to) {
  std::map<std::int64_t, Selection> parts;  // by the index at which they begin
  std::mutex mutex;
  std::atomic<std::int64_t> total = 0;
  parallel_for(of.n, kStep, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Selection part;
    std::uint32_t found[kStep];
    for (std::int64_t i = begin; i < end; i += kStep) {
      const float* r = of.r == nullptr ? nullptr : of.r + i;
      float* sum = of.r == nullptr ? nullptr : of.sum + i;
      const std::int64_t count = Kernels().find_large(kMagnitude, least, std::min(kStep, end - i),
                                                      of.x + i, r, sum, found);
      total += count;
      if (total > most) continue;
      Append(i, {found, static_cast<std::size_t>(count)}, sum == nullptr ? of.x + i : sum, part);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    parts.emplace(begin, std::move(part));
  });
  if (total > most) return total;
  for (const auto& [begin, part] : parts) Append(part, to);
  return total;
}

/// Removes from the selection `of` all values except those above the limit, and except the first
/// limit.equals values that equal the limit.
void Shrink(LargestLimit limit, Selection& of) {
  std::size_t kept = 0;
  for (std::size_t p = 0; p < of.places.size(); ++p) {
    const std::uint32_t pattern = PatternOf(of.values[p]);
    if (pattern < limit.pattern || (pattern == limit.pattern && limit.equals-- <= 0)) continue;
    of.places[kept] = of.places[p];
    of.values[kept++] = of.values[p];
  }
  of.places.resize(kept);
  of.values.resize(kept);
}

/// Appends to `to` each of the n values v that the limit selects: all values above the limit, and
/// the first limit.equals values that equal it.
void Within(std::int64_t n, const float* v, LargestLimit limit, Selection& to) {
  std::uint32_t found[kStep];
  for (std::int64_t i = 0; i < n; i += kStep) {
    const std::uint32_t least = limit.equals > 0 ? limit.pattern : limit.pattern + 1;
    const std::int64_t count = Kernels().find_large(kMagnitude, least, std::min(kStep, n - i),
                                                    v + i, nullptr, nullptr, found);
    Selection part;
    Append(i, {found, static_cast<std::size_t>(count)}, v + i, part);
    const auto equals = std::ranges::count(part.values, limit.pattern, PatternOf);
    Shrink(limit, part);
    limit.equals -= std::min<std::int64_t>(limit.equals, equals);
    Append(part, to);
  }
}

}  // namespace

void FindLargest(const Summands& of, std::int64_t k, Selection& largest) {
  largest.places.clear();
  largest.values.clear();
  if (of.n == 0) return;
  const std::uint32_t least = of.n < kSampled ? 1 : GuessOf(of, k);
  const std::int64_t most = 4 * k + kStep;
  const std::int64_t count = Reaching(of, least, most, largest);
  const auto limit_of = [k](std::int64_t n, const float* v) {
    return with_non_finite(LimitOf(n, k, [v](std::int64_t i) { return PatternOf(v[i]); }));
  };
  if (k <= count && count <= most) return Shrink(limit_of(count, largest.values.data()), largest);
  const float* const v = of.r == nullptr ? of.x : of.sum;
  const bool wants_zeros = count <= most && least == 1;
  const LargestLimit limit = wants_zeros ? LargestLimit{0, k - count} : limit_of(of.n, v);
  largest = {};
  Within(of.n, v, limit, largest);
}

}  // namespace cpd
