// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpd/export.h"

namespace cpd::cuda {

/// Returns device memory that is kept for later calls to the device, for others to use. Waits for
/// the device's work. Throws MachineError where CUDA reports an error.
CPD_API void ReleaseUnusedMemory(int device);

/// Throws Error for what an earlier call on the device should have refused, but only its values
/// told (cuda_faults.h); the caller has waited for the device's work.
CPD_API void CheckDevice(int device);

}  // namespace cpd::cuda
