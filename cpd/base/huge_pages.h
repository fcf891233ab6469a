// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "cpd/export.h"

namespace cpd {

/// Asks for huge pages under memory that has not been written: fewer faults, which for a large
/// result cost several times what computing it does. A hint, without effect on small memory, where
/// the system has none, or where it was written before. NumPy does the same for its own arrays.
CPD_API void AdviseHugePages(void* data, std::size_t bytes) noexcept;

}  // namespace cpd
