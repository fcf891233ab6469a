// SPDX-License-Identifier: Apache-2.0
//
// Finds fast paths by name. A test then compiles and runs even if paths.def does not list a path.
#pragma once

#include <string_view>

#include "cpd/numeric/fast/fast_path.h"

namespace cpd::testing {

/// Returns the fast path with this name; FastPath::none (the general path) if there is none.
constexpr FastPath path_named(std::string_view name) {
  for (int i = 1; i < kFastPaths; ++i) {
    if (name == kFastPathNames[i]) return static_cast<FastPath>(i);
  }
  return FastPath::none;
}

}  // namespace cpd::testing
