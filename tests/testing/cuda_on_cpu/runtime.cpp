// SPDX-License-Identifier: Apache-2.0
//
// Streams, whose work is done when somebody waits for it, no earlier; the runtime's calls over them
// and memory.h; and of the driver (libcuda.so.1) those that tests/testing/cuda_memory.h makes.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <set>

#include "tests/testing/cuda_on_cpu/cuda_runtime.h"
#include "tests/testing/cuda_on_cpu/memory.h"
#include "tests/testing/cuda_on_cpu/shared_memory.h"

namespace cuda_on_cpu {

using Work = std::function<void()>;

class Stream {
 public:
  Stream() {
    const std::lock_guard<std::recursive_mutex> lock(Memory::Get().mutex());
    All().insert(this);
  }

  void Queue(Work work) {
    const std::lock_guard<std::recursive_mutex> lock(Memory::Get().mutex());
    queue_.push_back(std::move(work));
    ++queued_;
  }

  /// Does what is queued, up to number `count`.
  void RunTo(std::int64_t count) {
    const Memory::Access access;
    while (done_ < count) {
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      ++done_;
      work();
    }
  }
  void Run() { RunTo(queued()); }
  std::int64_t queued() const {
    const std::lock_guard<std::recursive_mutex> lock(Memory::Get().mutex());
    return queued_;
  }

  static void RunAll() {
    const Memory::Access access;
    for (Stream* stream : All()) stream->Run();
  }
  /// The default stream where there is none.
  static Stream& Of(Stream* stream) {
    static auto& standard = *new Stream;
    return stream == nullptr ? standard : *stream;
  }

 private:
  static std::set<Stream*>& All() {
    static auto& all = *new std::set<Stream*>;
    return all;
  }

  std::deque<Work> queue_;
  std::int64_t queued_ = 0;
  std::int64_t done_ = 0;
};

struct Event {
  Stream* stream = nullptr;
  std::int64_t count = 0;
};
struct Pool {};

namespace {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostBlocks = 0x7FFFFFFF;
constexpr std::size_t kMostParameters = 4096;
constexpr std::size_t kMostShared = std::size_t{48} << 10;

thread_local cudaError_t t_last = cudaSuccess;

cudaError_t failed(cudaError_t status) { return t_last = status; }

ThreadOrder order_of_environment() {
  const char* name = std::getenv("CPD_THREAD_ORDER");
  const std::string order = name == nullptr ? "ascending" : name;
  if (order == "ascending") return ThreadOrder::ascending;
  if (order == "descending") return ThreadOrder::descending;
  if (order == "shuffled") return ThreadOrder::shuffled;
  fail("CPD_THREAD_ORDER must be ascending, descending or shuffled, got " + order);
}

ThreadOrder thread_order() {
  static const ThreadOrder order = order_of_environment();
  return order;
}

void run_grid(const cudaLaunchConfig_t& config, const void* kernel, const Work& thread) {
  SharedMemory& shared = SharedMemory::Of(kernel);
  shared.Begin();
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  const bool backwards = thread_order() == ThreadOrder::descending;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    blockIdx.x = backwards ? gridDim.x - 1 - i : i;
    run_block(kernel, thread_order(), thread);
    shared.CheckAround();
  }
}

cudaError_t allocate(void** memory, std::size_t bytes) {
  *memory = Memory::Get().Allocate(bytes);
  return *memory == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

}  // namespace

cudaError_t queue_grid(const cudaLaunchConfig_t& config, std::size_t parameter_bytes,
                       const void* kernel, Work thread) {
  const dim3& blocks = config.gridDim;
  const dim3& threads = config.blockDim;
  const bool is_flat = blocks.y == 1 && blocks.z == 1 && threads.y == 1 && threads.z == 1;
  if (!is_flat || blocks.x < 1 || blocks.x > kMostBlocks || threads.x < 1 ||
      threads.x > kMostThreads || config.dynamicSmemBytes > kMostShared ||
      parameter_bytes > kMostParameters) {
    return failed(cudaErrorInvalidConfiguration);
  }
  Stream::Of(config.stream).Queue([config, kernel, thread = std::move(thread)] {
    run_grid(config, kernel, thread);
  });
  return cudaSuccess;
}

std::atomic<int> g_waits = 0;
std::atomic<int> g_trims = 0;
int trims() { return g_trims; }

bool g_capturing = false;
void set_capturing(bool capturing) { g_capturing = capturing; }

/// Counts a wait of the host, which is an error during a capture.
cudaError_t begin_wait() {
  ++g_waits;
  return g_capturing ? failed(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

void queue_work(cudaStream_t stream, Work work) { Stream::Of(stream).Queue(std::move(work)); }

}  // namespace cuda_on_cpu

using cuda_on_cpu::Memory;
using cuda_on_cpu::Stream;

cudaError_t cudaGetLastError() { return std::exchange(cuda_on_cpu::t_last, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cuda_on_cpu::failed(cudaErrorInvalidDevice);
}
/// One processor: loops over a grid's stride turn often.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return cuda_on_cpu::allocate(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  Stream::RunAll();
  Memory::Get().Free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = Memory::Get().AllocatePinned(bytes);
  return *memory == nullptr ? cuda_on_cpu::failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  Stream::RunAll();
  Memory::Get().FreePinned(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  Stream::Of(stream).Queue([memory] { Memory::Get().Free(memory); });
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = new cuda_on_cpu::Pool;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  ++cuda_on_cpu::g_trims;
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t, cudaStream_t) {
  return cuda_on_cpu::allocate(memory, bytes);
}

/// What is read from pageable memory is read before the call returns; what goes there has arrived.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Stream& order = Stream::Of(stream);
  if (Memory::Get().IsKnown(from)) {
    order.Queue([=] { std::memcpy(to, from, bytes); });
  } else {
    const auto* first = static_cast<const std::uint8_t*>(from);
    order.Queue([to, staged = std::vector<std::uint8_t>(first, first + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
  }
  if (!Memory::Get().IsKnown(to)) order.Run();
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  Stream::Of(stream).Queue([=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const cudaError_t status = cuda_on_cpu::begin_wait();
  if (status == cudaSuccess) Stream::RunAll();
  return status;
}
/// No graph is made here.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cuda_on_cpu::g_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream;
  return cudaSuccess;
}
/// Returns at once, as CUDA's does; the stream's work goes on, for those who wait for it.
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t status = cuda_on_cpu::begin_wait();
  if (status == cudaSuccess) Stream::Of(stream).Run();
  return status;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new cuda_on_cpu::Event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = &Stream::Of(stream);
  event->count = event->stream->queued();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Stream::Of(stream).Queue([recorded = *event] {
    if (recorded.stream != nullptr) recorded.stream->RunTo(recorded.count);
  });
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

// ---- the driver ---------------------------------------------------------------------------------

extern "C" {

/// How often the host has waited for a stream: in the capture of a graph that is an error.
int cuda_on_cpu_waits() { return cuda_on_cpu::g_waits; }
int cuda_on_cpu_trims() { return cuda_on_cpu::g_trims; }
/// How many pieces of the device's memory are in use when all that is queued is done.
std::int64_t cuda_on_cpu_pieces() {
  Stream::RunAll();
  return Memory::Get().pieces();
}

int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = nullptr;
  return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() {
  Stream::RunAll();
  return 0;
}
int cuMemAlloc_v2(std::uint64_t* memory, std::size_t bytes) {
  void* made = nullptr;
  const int status = cudaMalloc(&made, bytes);
  *memory = reinterpret_cast<std::uint64_t>(made);
  return status;
}
int cuMemFree_v2(std::uint64_t memory) { return cudaFree(reinterpret_cast<void*>(memory)); }
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  const Memory::Access access;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  Stream::RunAll();
  const Memory::Access access;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}

}  // extern "C"
