// SPDX-License-Identifier: Apache-2.0
//
// Faults on purpose, for tests: a hook on entering each phase, and a link that can be dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cpd/comm/report.h"
#include "cpd/comm/transport/transport.h"

namespace cpd {

/// Called on this process's ranks as they enter a phase; it may end or stop the process, or break
/// the transport. `chunk` counts from 0 (0 for handshake and exponents).
using FaultHook = std::function<void(Phase phase, std::int64_t chunk, Transport& transport)>;
/// Sets the hook; an empty function removes it.
CPD_API void SetFaultHook(FaultHook hook);

/// Calls the hook, where there is one: for the library.
void Enter(Phase phase, std::int64_t chunk, Transport& transport);

/// Wraps a transport so that Break can drop its link: from then on nothing is sent or received,
/// alarms included, and transfers do not fail.
CPD_API std::unique_ptr<Transport> Breakable(std::unique_ptr<Transport> transport);
/// Throws Error for a transport that Breakable did not make.
CPD_API void Break(Transport& transport);

}  // namespace cpd
