// SPDX-License-Identifier: Apache-2.0
//
// Allocates the memory that kernels need for themselves from torch's caching allocator. Then torch
// counts that memory, frees cached memory before it runs out, and gives captured graphs memory of
// their own. torch's allocator assigns memory to torch's current stream, so it does not serve other
// streams, which reductions use.
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "cpd/backend/registry.h"
#include "torch_tensors.h"

namespace cpd {
namespace {

using Answer = Allocator::Answer;

/// The tensors whose memory is in use. Never destroyed, because kernels may still be queued when
/// the process ends.
struct InUse {
  std::mutex mutex;
  std::unordered_map<void*, Tensor> tensors;
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

Answer Allocate(int device, void* stream, std::int64_t bytes, void** memory) {
  if (!IsCurrent(device, stream)) return Answer::not_mine;
  const std::int64_t size = bytes > 0 ? bytes : 1;
  const std::int64_t step = 1;
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(1, &size, &step, aoti_torch_dtype_uint8(),
                               aoti_torch_device_type_cuda(), device, &handle) != 0) {
    return Answer::none_left;
  }
  Tensor made(handle);
  *memory = made.mutable_data_ptr();
  InUse& all = All();
  const std::lock_guard lock(all.mutex);
  all.tensors.insert_or_assign(*memory, std::move(made));
  return Answer::given;
}

bool Release(void* memory) {
  InUse& all = All();
  const auto released = [&] {  // outlives the lock: torch frees its memory
    const std::lock_guard lock(all.mutex);
    return all.tensors.extract(memory);
  }();
  return !released.empty();
}

constexpr Allocator kTorch{Allocate, Release};
[[maybe_unused]] const bool kIsSet = (SetAllocator(&kTorch), true);

}  // namespace
}  // namespace cpd
