// SPDX-License-Identifier: Apache-2.0
//
// A transport whose messages a Python object moves: torch.distributed's, whose process groups have
// no stable C++ interface (python/cpd/comm/torch_transport.py).
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "cpd/comm/transport/transport.h"

namespace cpd {

/// The object has the attributes name, rank, size, ranks_on_host, device_index (-1: messages are in
/// host memory), alarm_keeper (as Transport's), and
///   start(out, in, tag) -> transfer; out and in are lists of (peer, address, bytes)
///   raise_alarm(), alarms() -> list of bool, subgroup(ranks, timeout) -> such an object,
///   abort(reason), close()
/// A transfer has poll() -> bool, waiting() -> list of int, and abandon(), called where it goes
/// before poll() was true. An exception arrives as TransportError, its attribute `peer`, where it
/// has one, as the peer; one with a list `ranks` as RankLost. The GIL is taken for each of these
/// calls and held for no longer. Called with the GIL.
std::unique_ptr<Transport> PythonTransport(const pybind11::object& implementation);

}  // namespace cpd
