// SPDX-License-Identifier: Apache-2.0
//
// Operations on a device's memory and faults for front ends, which do not use the device's backend.
#pragma once

#include <string>

#include "cpd/base/tensor.h"
#include "cpd/spec/error.h"

namespace cpd {

/// Thrown if a device has no memory left. In Python it becomes torch.OutOfMemoryError, or a
/// RuntimeError without torch.
class CPD_API NoDeviceMemory : public MachineError {
 public:
  /// `message` must begin with "CUDA out of memory". Other kinds of devices replace CUDA by their
  /// own name.
  explicit NoDeviceMemory(const std::string& message) : MachineError(message) {}
};

/// A function that throws a front end's exception in place of NoDeviceMemory.
using NoDeviceMemoryThrower = void (*)(const char* message);
/// Sets the function that this process calls to throw a front end's exception in place of
/// NoDeviceMemory. Null removes the function.
CPD_API void SetThrower(NoDeviceMemoryThrower thrower);
/// Calls the function that SetThrower has set. If there is none, throws `error`.
[[noreturn]] CPD_API void ThrowAsFrontEnds(const NoDeviceMemory& error);

/// Releases unused memory, which is stored for later calls, to the device. Waits for the device's
/// work. Throws MachineError if the backend reports an error.
CPD_API void ReleaseUnusedMemory(Device kind, int device);

/// Throws Error if an earlier call on the device had a fault, an error in its values (faults.h).
/// The caller must have waited for the device's work.
CPD_API void CheckDevice(Device kind, int device);

}  // namespace cpd
