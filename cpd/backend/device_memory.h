// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpd/export.h"

namespace cpd::cuda {

/// Gives device memory that is kept for later calls back to the device, for others to take. Waits
/// for the device's work. Throws MachineError where CUDA reports an error.
CPD_API void ReleaseUnusedMemory(int device);

}  // namespace cpd::cuda
