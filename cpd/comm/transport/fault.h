// SPDX-License-Identifier: Apache-2.0
//
// Injects faults for tests: a hook that is called on entering each phase, and a link that can be
// dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cpd/comm/report.h"
#include "cpd/comm/transport/transport.h"

namespace cpd {

/// A function that is called whenever a rank of this process enters a phase. It may end or stop the
/// process, or break the transport. `chunk` counts from 0; it is 0 in the phases handshake and
/// exponents.
using FaultHook = std::function<void(Phase phase, std::int64_t chunk, Transport& transport)>;
/// Sets the FaultHook that Enter calls; an empty function removes the FaultHook set before.
CPD_API void SetFaultHook(FaultHook hook);

/// Calls the FaultHook if one is set. The library calls Enter whenever a rank enters a phase.
void Enter(Phase phase, std::int64_t chunk, Transport& transport);

/// Wraps a transport whose link can be dropped by Break. After Break nothing is sent or received,
/// not even alarms. Transfers then wait without failing.
CPD_API std::unique_ptr<Transport> Breakable(std::unique_ptr<Transport> transport);
/// Drops the link of a transport that Breakable made; throws Error for any other transport.
CPD_API void Break(Transport& transport);

}  // namespace cpd
