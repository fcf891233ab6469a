// SPDX-License-Identifier: Apache-2.0
//
// Faults: errors in values in a device's memory, which the host cannot check when it queues a call.
// Examples are an operand of a matrix unit that is not a value of the unit's format, a random
// integer out of range, and a NaN without a code.
//
// Kernels record faults in memory that the host reads without waiting. A later operation on the
// device, or a later part of the same operation, throws the error. Within a reduction over ranks
// nothing is thrown, because only one rank would fail. With CPD_CHECK=sync each call that may have
// a fault waits, and throws the error itself.
#pragma once

#include <string>

#include "cpd/backend/backend.h"

namespace cpd {

/// Throws the error that a call's status reports, unless the status is 0: NoDeviceMemory or another
/// MachineError.
void CheckStatus(const Backend& backend, int status);

/// An error whose text consists of `before`, the number of an element, and `after`.
struct Fault {
  std::string before, after;
};

/// Throws the Error of a fault at element number `element`.
[[noreturn]] void Raise(const Fault& fault, unsigned long long element);
/// Returns the address at which kernels record the lowest index of an element with this fault;
/// kNoFault means no fault. The memory is pinned. Equal faults on one device have one address.
unsigned long long* NoteOf(const Backend& backend, const Launch& launch, const Fault& fault);
/// Waits for all of the device's work and throws Error if a fault was recorded. All recorded faults
/// are then forgotten.
void RaiseFaults(const Backend& backend, int device);
/// Must follow the work of a call that may have recorded a fault. If CPD_CHECK=sync is set, waits
/// for the work and throws the fault's error.
void EndChecked(const Backend& backend, const Launch& launch);

/// Sets whether each call waits for its own faults and throws them. Without a call of this function
/// CPD_CHECK decides. For tests.
CPD_API void CheckAtOnce(bool at_once);

}  // namespace cpd
