// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of one process. (Thousands of ranks without threads: virtual.h.)
#pragma once

#include <memory>
#include <vector>

#include "cpd/comm/transport/transport.h"

namespace cpd {

/// The transports of a group of `size` ranks, rank ascending; each may be used from a thread of its
/// own. Throws Error where size < 1.
CPD_API std::vector<std::unique_ptr<Transport>> LocalTransports(int size);

}  // namespace cpd
