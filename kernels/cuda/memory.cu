// SPDX-License-Identifier: Apache-2.0
//
// Pinned, device and stream-ordered memory, and streams.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels/cuda/device.cuh"

namespace cpd::cuda {
namespace {

/// A pool of the device that keeps its memory when the host waits; the default pool does not.
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

/// Releases the pool's unused memory to the device, after all work that may use it.
cudaError_t trim(int device) {
  cudaMemPool_t pool = nullptr;
  cudaError_t status = pool_of(device, &pool);
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  return status == cudaSuccess ? cudaMemPoolTrimTo(pool, 0) : status;
}

std::atomic<const Allocator*> g_allocator = nullptr;

/// Memory from the framework's allocator; null where there is none, or it gives none.
void* from_allocator(const Launch& launch, MemoryKind kind, std::int64_t bytes) {
  const Allocator* allocator = g_allocator;
  if (kind != MemoryKind::queued || allocator == nullptr) return nullptr;
  return allocator->allocate(launch.device, launch.stream, bytes);
}

cudaError_t try_to_allocate(const Launch& launch, MemoryKind kind, std::size_t size,
                            void** memory) {
  if (kind == MemoryKind::pinned) return cudaHostAlloc(memory, size, cudaHostAllocPortable);
  if (kind == MemoryKind::device) return cudaMalloc(memory, size);
  cudaMemPool_t pool = nullptr;
  const cudaError_t status = pool_of(launch.device, &pool);
  if (status != cudaSuccess) return status;
  return cudaMallocFromPoolAsync(memory, size, pool, static_cast<cudaStream_t>(launch.stream));
}

}  // namespace

void set_allocator(const Allocator* allocator) { g_allocator = allocator; }

int allocate(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory) {
  *memory = from_allocator(launch, kind, bytes);
  if (*memory != nullptr) return cudaSuccess;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const std::size_t size = bytes > 0 ? static_cast<std::size_t>(bytes) : 1;
  cudaError_t status = try_to_allocate(launch, kind, size, memory);
  if (status != cudaErrorMemoryAllocation) return status;
  cudaGetLastError();  // clears the error
  status = trim(launch.device);
  return status == cudaSuccess ? try_to_allocate(launch, kind, size, memory) : status;
}

int release_unused(int device) {
  const OnDevice on(device);
  return on.status() == cudaSuccess ? trim(device) : on.status();
}

int release(const Launch& launch, MemoryKind kind, void* memory) {
  const Allocator* allocator = g_allocator;
  const bool is_queued = kind == MemoryKind::queued;
  if (is_queued && allocator != nullptr && allocator->release(memory)) return cudaSuccess;
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
