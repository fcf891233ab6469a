// SPDX-License-Identifier: Apache-2.0
//
// Fast paths by name, so that a test runs without a path that paths.def does not list.
#pragma once

#include <string_view>

#include "cpd/numeric/fast/fast_path.h"

namespace cpd::testing {

/// The path of a name; none, the general path, where there is no such path.
constexpr FastPath path_named(std::string_view name) {
  for (int i = 1; i < kFastPaths; ++i) {
    if (name == kFastPathNames[i]) return static_cast<FastPath>(i);
  }
  return FastPath::none;
}

}  // namespace cpd::testing
