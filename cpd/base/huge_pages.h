// SPDX-License-Identifier: Apache-2.0
//
// Asks the system for huge pages for large memory. This changes speed only.
#pragma once

#include <cstddef>

#include "cpd/export.h"

namespace cpd {

/// Requests huge pages for memory that has not been written. Huge pages reduce page faults, which
/// for a large result can take several times as long as computing the result. The request has no
/// effect on small memory, on memory that was written before, or if the system has no huge pages.
/// NumPy does the same for its own arrays.
CPD_API void AdviseHugePages(void* data, std::size_t bytes) noexcept;

}  // namespace cpd
