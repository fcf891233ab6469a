// SPDX-License-Identifier: Apache-2.0
//
// Selects the fast paths of this process. All fast paths are on, except those that CPD_FAST
// switches off. Results have the same bits with any selection.
#pragma once

#include <string_view>

#include "cpd/export.h"
#include "cpd/numeric/fast/fast_path.h"

namespace cpd {

/// Parses the value of CPD_FAST. An empty text or `all` means all paths, and `none` means none. A
/// list of names, each after a '-' and separated by commas, switches these paths off, as in
/// "-veltkamp,-stochastic". Throws Error for any other text.
CPD_API FastPaths ParseFastPaths(std::string_view text);

/// Returns the fast paths that are on: the paths that SetFastPaths has set, or the paths of
/// CPD_FAST, which is read at the first call. Throws Error if CPD_FAST has an invalid text.
CPD_API FastPaths EnabledFastPaths();

/// Sets the fast paths that later calls use. Existing plans do not change.
CPD_API void SetFastPaths(FastPaths paths);

}  // namespace cpd
