// SPDX-License-Identifier: Apache-2.0
//
// Fewer cases of a kind under a sanitizer: it looks for faults of memory, threads and undefined
// behaviour, which do not hide in one format of many, and each access costs it several times more.
#pragma once

#include <cstddef>
#include <vector>

extern "C" {
void __asan_init() __attribute__((weak));  // NOLINT: the sanitizers' own, null without them
void __tsan_init() __attribute__((weak));  // NOLINT
}

namespace cpd::testing {

/// Whether a sanitizer watches this program, or the library that it calls.
inline const bool kSanitized = &__asan_init != nullptr || &__tsan_init != nullptr;

/// All of them, or every seventh under a sanitizer.
template <class T>
std::vector<T> thinned(std::vector<T> all) {
  if (!kSanitized) return all;
  std::vector<T> some;
  for (std::size_t i = 0; i < all.size(); i += 7) some.push_back(all[i]);
  return some;
}

}  // namespace cpd::testing
