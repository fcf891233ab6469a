// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpd/export.h"

namespace cpd::cuda {

/// Returns device memory that is kept for later calls to the device, for others to use. Waits for
/// the device's work. Throws MachineError where CUDA reports an error.
CPD_API void ReleaseUnusedMemory(int device);

}  // namespace cpd::cuda
