// SPDX-License-Identifier: Apache-2.0
//
// Allocates pinned, device and stream-ordered memory, and creates streams.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/device.cuh"

namespace cpd::cuda {
namespace {

/// Gets a memory pool of the device that keeps freed memory when the host waits; the device's
/// default pool would release it.
cudaError_t pool_of(int device, cudaMemPool_t* pool) {
  static std::mutex mutex;
  static auto& pools = *new std::vector<cudaMemPool_t>();  // in use until the process has ended
  const std::lock_guard<std::mutex> lock(mutex);
  const auto d = static_cast<std::size_t>(device);
  if (pools.size() <= d) pools.resize(d + 1);
  if (pools[d] == nullptr) {
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device;
    cudaMemPool_t made = nullptr;
    cudaError_t status = cudaMemPoolCreate(&made, &props);
    if (status != cudaSuccess) return status;
    std::uint64_t all = ~std::uint64_t{0};
    status = cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &all);
    if (status != cudaSuccess) return status;
    pools[d] = made;
  }
  *pool = pools[d];
  return cudaSuccess;
}

/// Waits for all work on the device, and then releases the unused memory of the device's pool.
cudaError_t trim(int device) {
  cudaMemPool_t pool = nullptr;
  cudaError_t status = pool_of(device, &pool);
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  return status == cudaSuccess ? cudaMemPoolTrimTo(pool, 0) : status;
}

/// Points to libcpd's pointer to the allocator of a framework such as torch, which may be set or
/// changed at any time. Null if this library is used without libcpd.
std::atomic<const std::atomic<const Allocator*>*> g_place = nullptr;

/// Returns the allocator of a framework such as torch, or null if there is none.
const Allocator* allocator() {
  const std::atomic<const Allocator*>* const place = g_place;
  return place == nullptr ? nullptr : place->load();
}

/// Returns whether the stream is being captured in a CUDA graph. The host must not wait during a
/// capture.
bool is_captured(const Launch& launch) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  return cudaStreamIsCapturing(stream, &capture) != cudaSuccess ||
         capture != cudaStreamCaptureStatusNone;
}

cudaError_t try_to_allocate(const Launch& launch, MemoryKind kind, std::int64_t bytes,
                            void** memory) {
  const std::size_t size = bytes > 0 ? static_cast<std::size_t>(bytes) : 1;
  if (kind == MemoryKind::pinned) return cudaHostAlloc(memory, size, cudaHostAllocPortable);
  if (kind == MemoryKind::device) return cudaMalloc(memory, size);
  if (const Allocator* const framework = allocator()) {
    switch (framework->allocate(launch.device, launch.stream, bytes, memory)) {
      case Allocator::Answer::given:
        return cudaSuccess;
      case Allocator::Answer::none_left:
        return cudaErrorMemoryAllocation;
      case Allocator::Answer::not_mine:
        break;
    }
  }
  cudaMemPool_t pool = nullptr;
  const cudaError_t status = pool_of(launch.device, &pool);
  if (status != cudaSuccess) return status;
  return cudaMallocFromPoolAsync(memory, size, pool, static_cast<cudaStream_t>(launch.stream));
}

/// Calls try_to_allocate and, if it fails, releases the pool's unused memory and tries again.
cudaError_t allocate_or_trim(const Launch& launch, MemoryKind kind, std::int64_t bytes,
                             void** memory) {
  cudaError_t status = try_to_allocate(launch, kind, bytes, memory);
  if (status != cudaErrorMemoryAllocation) return status;
  cudaGetLastError();  // clears the error
  if (is_captured(launch)) return status;
  status = trim(launch.device);
  return status == cudaSuccess ? try_to_allocate(launch, kind, bytes, memory) : status;
}

thread_local std::string t_lack;

}  // namespace

void use_allocator_at(const std::atomic<const Allocator*>& place) { g_place = &place; }

std::string take_lack() { return std::exchange(t_lack, {}); }

int allocate(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory) {
  *memory = nullptr;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const cudaError_t status = allocate_or_trim(launch, kind, bytes, memory);
  if (status == cudaErrorMemoryAllocation) {
    const char* const of = kind == MemoryKind::pinned ? ", pinned on the host" : "";
    t_lack = ": " + std::to_string(bytes) + " bytes for CPD's own use" + of;
  }
  return status;
}

int release_unused(int device) {
  const OnDevice on(device);
  return on.status() == cudaSuccess ? trim(device) : on.status();
}

int release(const Launch& launch, MemoryKind kind, void* memory) {
  const Allocator* const framework = kind == MemoryKind::queued ? allocator() : nullptr;
  if (framework != nullptr && framework->release(memory)) return cudaSuccess;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  if (kind == MemoryKind::pinned) return cudaFreeHost(memory);
  if (kind == MemoryKind::device) return cudaFree(memory);
  return cudaFreeAsync(memory, static_cast<cudaStream_t>(launch.stream));
}

int copy(const Launch& launch, void* to, const void* from, std::int64_t bytes) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const cudaError_t queued =
      cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream);
  return queued == cudaSuccess ? cudaStreamSynchronize(stream) : queued;
}

int clear(const Launch& launch, void* memory, std::int64_t bytes) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  return cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes),
                         static_cast<cudaStream_t>(launch.stream));
}

int open_stream(int device, void** stream) {
  const OnDevice on(device);
  if (on.status() != cudaSuccess) return on.status();
  return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
}

int close_stream(int device, void* stream) {
  const OnDevice on(device);
  if (on.status() != cudaSuccess) return on.status();
  return cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

int order(const Launch& launch, void* after) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  cudaEvent_t event = nullptr;
  cudaError_t status = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (status != cudaSuccess) return status;
  status = cudaEventRecord(event, static_cast<cudaStream_t>(launch.stream));
  if (status == cudaSuccess) {
    status = cudaStreamWaitEvent(static_cast<cudaStream_t>(after), event, 0);
  }
  const cudaError_t destroyed = cudaEventDestroy(event);
  return status == cudaSuccess ? destroyed : status;
}

int wait(const Launch& launch) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  return cudaStreamSynchronize(static_cast<cudaStream_t>(launch.stream));
}

}  // namespace cpd::cuda
