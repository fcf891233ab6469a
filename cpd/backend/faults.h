// SPDX-License-Identifier: Apache-2.0
//
// Faults that only the values of a call on a device show: an operand of a matrix unit that its
// format does not hold, a random integer out of range, a NaN without a code. Kernels record them in
// memory that the host reads without waiting. A later operation on the device, or a later part of
// the same one, raises the error (not within a reduction over ranks, where one rank alone would
// fail). With CPD_CHECK=sync each such call waits, and raises the error itself.
#pragma once

#include <string>

#include "cpd/backend/backend.h"

namespace cpd {

/// Throws the error of a call's status, unless it is 0: NoDeviceMemory or another MachineError.
void CheckStatus(const Backend& backend, int status);

/// An error whose text is `before`, the number of an element, `after`.
struct Fault {
  std::string before, after;
};

/// Throws the Error of a fault of element number `element`.
[[noreturn]] void Raise(const Fault& fault, unsigned long long element);
/// The place where kernels note the least element that has the fault, kNoFault for none. It is in
/// pinned memory, and the same for the same fault and device.
unsigned long long* NoteOf(const Backend& backend, const Launch& launch, const Fault& fault);
/// Throws Error for a fault that was noted on the device, after waiting for all of its work; all
/// that were noted are then forgotten.
void RaiseFaults(const Backend& backend, int device);
/// After a call that may note a fault: waits and raises it where calls are checked at once.
void EndChecked(const Backend& backend, const Launch& launch);

/// Sets whether calls are checked at once; by default CPD_CHECK decides. For tests.
CPD_API void CheckAtOnce(bool at_once);

}  // namespace cpd
