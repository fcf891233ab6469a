// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are threads of one process. For thousands of ranks without threads see virtual.h.
#pragma once

#include <memory>
#include <vector>

#include "cpd/comm/transport/transport.h"

namespace cpd {

/// Returns the transports of a group of `size` ranks, by ascending rank. Each transport may be used
/// from its own thread. Throws Error if size < 1.
CPD_API std::vector<std::unique_ptr<Transport>> LocalTransports(int size);

}  // namespace cpd
