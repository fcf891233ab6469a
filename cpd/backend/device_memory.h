// SPDX-License-Identifier: Apache-2.0
//
// The operations that front ends use on a device's memory and faults, without its backend.
#pragma once

#include <string>

#include "cpd/base/tensor.h"
#include "cpd/spec/error.h"

namespace cpd {

/// A device has no memory left. In Python torch.OutOfMemoryError, without torch a RuntimeError.
class CPD_API NoDeviceMemory : public MachineError {
 public:
  /// `message` begins with "CUDA out of memory", or with another kind of device.
  explicit NoDeviceMemory(const std::string& message) : MachineError(message) {}
};

/// Throws a front end's exception in place of NoDeviceMemory.
using NoDeviceMemoryThrower = void (*)(const char* message);
/// Sets the thrower of the process; null: none.
CPD_API void SetThrower(NoDeviceMemoryThrower thrower);
/// Throws the exception of the thrower, else `error`.
[[noreturn]] CPD_API void ThrowAsFrontEnds(const NoDeviceMemory& error);

/// Returns unused device memory, which is stored for later calls, to the device. Waits for the
/// device's work. Throws MachineError if the backend reports an error.
CPD_API void ReleaseUnusedMemory(Device kind, int device);

/// Throws Error for a fault of an earlier call on the device that only its values showed
/// (faults.h). The caller has waited for the device's work.
CPD_API void CheckDevice(Device kind, int device);

}  // namespace cpd
