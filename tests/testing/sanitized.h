// SPDX-License-Identifier: Apache-2.0
//
// Fewer cases of a kind under a sanitizer: it looks for faults of memory, threads and undefined
// behaviour, which do not hide in one format of many, and each access costs it several times more.
#pragma once

#include <cstddef>
#include <vector>

namespace cpd::testing {

#ifdef CPD_SANITIZE_BUILD
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// All of them, or every seventh under a sanitizer.
template <class T>
std::vector<T> thinned(std::vector<T> all) {
  if constexpr (kSanitized) {
    std::vector<T> some;
    for (std::size_t i = 0; i < all.size(); i += 7) some.push_back(all[i]);
    return some;
  }
  return all;
}

}  // namespace cpd::testing
