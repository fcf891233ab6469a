// SPDX-License-Identifier: Apache-2.0
//
// Decides how many cases of a kind a run of tests has. The exhaustive tier has all cases, and the
// quick tier has some that are spread over them. A run with a sanitizer has still fewer, because
// faults of memory, threads or undefined behavior do not depend on one format of many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

extern "C" {
void __asan_init() __attribute__((weak));  // NOLINT: the sanitizers' own, null without them
void __tsan_init() __attribute__((weak));  // NOLINT
}

namespace cpd::testing {

/// True if a sanitizer watches this program or the library that it calls.
inline const bool kSanitized = &__asan_init != nullptr || &__tsan_init != nullptr;

/// True if this run is of the exhaustive tier (CPD_TEST_EVERYTHING, set by `./dev test --all`).
inline const bool kEverything = std::getenv("CPD_TEST_EVERYTHING") != nullptr;

/// Returns all cases; under a sanitizer, the first case and every `of`th case after it.
template <class T>
std::vector<T> thinned(std::vector<T> all, std::size_t of = 7) {
  if (!kSanitized) return all;
  std::vector<T> some;
  for (std::size_t i = 0; i < all.size(); i += of) some.push_back(all[i]);
  return some;
}

/// Returns whether case number i is one of those that the quick tier runs, about one in `of`. The
/// choice has no period in i, because i may count through formats, modes and signs.
inline bool is_chosen(std::size_t i, unsigned of) {
  const std::uint64_t mixed = (std::uint64_t{i} + 1) * 0x9E3779B97F4A7C15U;
  return kEverything || of <= 1 || (mixed >> 40) % of == 0;
}

/// Returns all cases in the exhaustive tier. In the quick tier, returns the first case and about
/// one in `of` of the other cases; under a sanitizer, about one in 2 * `of` of them.
template <class T>
std::vector<T> few(std::vector<T> all, unsigned of) {
  std::vector<T> some;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || is_chosen(i, kSanitized ? 2 * of : of)) some.push_back(all[i]);
  }
  return some;
}

}  // namespace cpd::testing
