// SPDX-License-Identifier: Apache-2.0
//
// A transport that sends messages through a Python object. Used for torch.distributed, whose
// process groups have no stable C++ interface (python/cpd/comm/torch_transport.py).
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "cpd/comm/transport/transport.h"

namespace cpd {

/// Returns a transport that calls `implementation`. The thread must hold the GIL.
///
/// The Python object must have the attributes name, rank, size, ranks_on_host, device_index (-1:
/// messages are in host memory) and alarm_keeper (as in Transport), and these methods:
///   start(out, in, tag) -> transfer; out and in are lists of (peer, address, bytes)
///   raise_alarm(), alarms() -> list of bool
///   subgroup(ranks, timeout) -> an object of the same kind
///   abort(reason), close()
/// A transfer must have the methods poll() -> bool, waiting() -> list of int, and abandon().
/// abandon() is called if the transfer is destroyed before poll() has returned true.
///
/// A Python exception with a list `ranks` becomes RankLost. Any other exception becomes
/// TransportError; its attribute `peer`, if it has one, becomes the error's peer. Each call of a
/// method acquires the GIL and releases it afterwards.
std::unique_ptr<Transport> PythonTransport(const pybind11::object& implementation);

}  // namespace cpd
