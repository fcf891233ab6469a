// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/memory.h"

#include <utility>

namespace cpd {

MessageMemory::MessageMemory(SharedQueue queue, MemoryKind kind)
    : queue_(std::move(queue)),
      reader_(kind == MemoryKind::pinned ? HostQueue() : queue_),
      kind_(kind) {}

SharedMemory HostMemory() {
  static const SharedMemory memory =
      std::make_shared<const MessageMemory>(HostQueue(), MemoryKind::pinned);
  return memory;
}

}  // namespace cpd
