// SPDX-License-Identifier: Apache-2.0
//
// Asks the system for huge pages in large memory, for speed alone.
#pragma once

#include <cstddef>

#include "cpd/export.h"

namespace cpd {

/// Requests huge pages for memory that has not been written: fewer page faults, which for a large
/// result take several times as long as computing it. A hint, without effect on small memory, where
/// the system has none, or where it was written before. NumPy does the same for its own arrays.
CPD_API void AdviseHugePages(void* data, std::size_t bytes) noexcept;

}  // namespace cpd
