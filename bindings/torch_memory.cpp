// SPDX-License-Identifier: Apache-2.0
//
// Memory that kernels need for themselves, from torch's caching allocator: torch counts it, frees
// what it keeps before it runs out of memory, and gives captured graphs memory of their own. The
// allocator keeps memory by torch's current stream, so other streams (of reductions) are not
// served.
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "cpd/backend/cuda.h"
#include "torch_tensors.h"

namespace cpd {
namespace {

/// The tensors whose memory is in use; never destroyed, as kernels may be queued as the process
/// ends.
struct InUse {
  std::mutex mutex;
  std::unordered_map<void*, AtenTensorHandle> tensors;
};
InUse& All() {
  static auto* all = new InUse;
  return *all;
}

bool IsCurrent(int device, void* stream) {
  try {
    return CurrentCudaStream(device) == stream;
  } catch (const Error&) {  // no CUDA in this torch
    return false;
  }
}

void* Allocate(int device, void* stream, std::int64_t bytes) {
  if (!IsCurrent(device, stream)) return nullptr;
  const std::int64_t size = bytes > 0 ? bytes : 1;
  const std::int64_t step = 1;
  AtenTensorHandle made = nullptr;
  void* memory = nullptr;
  if (aoti_torch_empty_strided(1, &size, &step, aoti_torch_dtype_uint8(),
                               aoti_torch_device_type_cuda(), device, &made) != 0 ||
      aoti_torch_get_data_ptr(made, &memory) != 0) {
    return nullptr;
  }
  InUse& all = All();
  const std::lock_guard lock(all.mutex);
  all.tensors[memory] = made;
  return memory;
}

bool Release(void* memory) {
  InUse& all = All();
  AtenTensorHandle made = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.tensors.find(memory);
    if (found == all.tensors.end()) return false;
    made = found->second;
    all.tensors.erase(found);
  }
  return aoti_torch_delete_tensor_object(made) == 0;
}

constexpr cuda::Allocator kTorch{Allocate, Release};
[[maybe_unused]] const bool kIsSet = (cuda::SetAllocator(&kTorch), true);

}  // namespace
}  // namespace cpd
