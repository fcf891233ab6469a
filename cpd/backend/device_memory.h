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
/// Sets the one of the process; null: none.
CPD_API void SetThrower(NoDeviceMemoryThrower thrower);
/// Throws what the thrower does, else `error`.
[[noreturn]] CPD_API void ThrowAsFrontEnds(const NoDeviceMemory& error);

/// Returns device memory that is kept for later calls to the device, for others to use. Waits for
/// the device's work. Throws MachineError where the backend reports an error.
CPD_API void ReleaseUnusedMemory(Device kind, int device);

/// Throws Error for what an earlier call on the device should have refused, but only its values
/// told (faults.h); the caller has waited for the device's work.
CPD_API void CheckDevice(Device kind, int device);

}  // namespace cpd
