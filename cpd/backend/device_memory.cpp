// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/device_memory.h"

#include <atomic>

namespace cpd {
namespace {

std::atomic<NoDeviceMemoryThrower> g_thrower = nullptr;

}  // namespace

void SetThrower(NoDeviceMemoryThrower thrower) { g_thrower = thrower; }

void ThrowAsFrontEnds(const NoDeviceMemory& error) {
  if (const NoDeviceMemoryThrower thrower = g_thrower) thrower(error.what());
  throw error;
}

}  // namespace cpd
