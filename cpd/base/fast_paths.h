// SPDX-License-Identifier: Apache-2.0
//
// Selects the fast paths of this process: all, except the ones that CPD_FAST switches off. Results
// have the same bits with any set.
#pragma once

#include <string_view>

#include "cpd/export.h"
#include "cpd/numeric/fast/fast_path.h"

namespace cpd {

/// Parses the value of CPD_FAST: nothing or `all`, `none`, or names, each after a '-', separated by
/// commas, as in "-veltkamp,-stochastic". Throws Error for any other text.
CPD_API FastPaths ParseFastPaths(std::string_view text);

/// The set of CPD_FAST when it is first asked for, or of SetFastPaths. Throws Error where CPD_FAST
/// has another text.
CPD_API FastPaths EnabledFastPaths();

/// Sets the paths that later calls take. Plans that exist keep theirs.
CPD_API void SetFastPaths(FastPaths paths);

}  // namespace cpd
