// SPDX-License-Identifier: Apache-2.0
//
// Emulates CUDA's devices and streams, and the runtime's calls on them and on memory.h. Queued work
// runs only when somebody waits for it. Also emulates the few functions of the driver
// (libcuda.so.1) that tests/backend/test_operations.cpp calls.
//
// The rules for two devices follow the CUDA Programming Guide, 'Multi-Device System':
// - Each thread of the host has a current device, at first 0. A null stream is the default stream
//   of the current device.
//   Streams, events and memory from cudaMalloc are created on the current device.
//   cudaDeviceSynchronize waits only for the current device.
// - A launch on another device's stream gives cudaErrorInvalidResourceHandle.
// - A kernel that accesses another device's memory would give cudaErrorIllegalAddress, and make
//   the device unusable. Here the process ends.
// - Recording an event on another device's stream gives cudaErrorInvalidResourceHandle. Any stream
//   may wait for the event.
// - A copy may run on any stream, from and to any device. But memory of a pool is not mapped on
//   other devices, so copying it there gives cudaErrorInvalidValue. So does cudaMemsetAsync on any
//   memory of another device.
// - Memory of a pool belongs to the pool's device, whichever stream is used. A free in the order of
//   another device's stream would be undefined, because that stream orders none of the uses. Here
//   the process ends.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/cuda_on_cpu/cuda_runtime.h"
#include "tests/testing/cuda_on_cpu/memory.h"
#include "tests/testing/cuda_on_cpu/shared_memory.h"

namespace cuda_on_cpu {

using Work = std::function<void()>;

/// The current device of this thread.
thread_local int t_device = 0;

bool is_device(int device) { return device >= 0 && device < kDevices; }

class Stream {
 public:
  explicit Stream(int device) : device_(device) {
    const std::lock_guard<std::recursive_mutex> lock(Memory::mutex());
    All().insert(this);
  }
  [[nodiscard]] int device() const { return device_; }

  void Queue(Work work) {
    const std::lock_guard<std::recursive_mutex> lock(Memory::mutex());
    queue_.push_back(std::move(work));
    ++queued_;
  }

  /// Runs the queued work up to number `count`. Opens the device's memory only if there is work.
  void RunTo(std::int64_t count) {
    const std::lock_guard<std::recursive_mutex> lock(Memory::mutex());
    if (done_ >= count) return;
    const Memory::Access access(Memory::Only(device_));
    while (done_ < count) {
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      ++done_;
      work();
    }
  }
  void Run() { RunTo(queued()); }
  std::int64_t queued() const {
    const std::lock_guard<std::recursive_mutex> lock(Memory::mutex());
    return queued_;
  }

  static void RunAllOf(int device) {
    const std::lock_guard<std::recursive_mutex> lock(Memory::mutex());
    const auto has_work = [device](const Stream* stream) {
      return stream->device_ == device && !stream->queue_.empty();
    };
    if (std::ranges::none_of(All(), has_work)) return;
    const Memory::Access access(Memory::Only(device));  // once for all of them
    for (Stream* stream : All()) {
      if (has_work(stream)) stream->Run();
    }
  }
  /// Returns the stream; for null, the default stream of the current device.
  static Stream& Of(Stream* stream) {
    static const auto standard = [] {
      std::array<Stream*, kDevices> made{};
      for (int d = 0; d < kDevices; ++d) made[static_cast<std::size_t>(d)] = new Stream(d);
      return made;
    }();
    return stream == nullptr ? *standard[static_cast<std::size_t>(t_device)] : *stream;
  }

 private:
  static std::set<Stream*>& All() {
    static auto& all = *new std::set<Stream*>;
    return all;
  }

  const int device_;
  std::deque<Work> queue_;
  std::int64_t queued_ = 0;
  std::int64_t done_ = 0;
};

struct Event {
  int device = 0;
  Stream* stream = nullptr;
  std::int64_t count = 0;
};
struct Pool {
  int device = 0;
};

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

cudaError_t allocate(int device, void** memory, std::size_t bytes, bool pooled) {
  *memory = Memory::Of(device).Allocate(bytes, pooled);
  return *memory == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

constexpr std::size_t kMostNoted = 64;
std::mutex g_noting;
std::vector<const void*> g_noted;

/// Records a kernel for cuda_on_cpu_kernels.
void note_queued(const void* kernel) {
  const std::lock_guard<std::mutex> lock(g_noting);
  if (g_noted.size() < kMostNoted) g_noted.push_back(kernel);
}

/// Returns whether a device may copy from or to this address.
bool may_copy(int device, const void* memory) {
  const int owner = Memory::DeviceOf(memory);
  return owner < 0 || owner == device || !Memory::Of(owner).IsPooled(memory);
}

/// Copies bytes. Makes the memory of the devices that own the two addresses accessible meanwhile.
void copy(void* to, const void* from, std::size_t bytes) {
  const Memory::Access access(Memory::Only(Memory::DeviceOf(to)) |
                              Memory::Only(Memory::DeviceOf(from)));
  std::memcpy(to, from, bytes);
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
  Stream& stream = Stream::Of(config.stream);
  if (stream.device() != t_device) return failed(cudaErrorInvalidResourceHandle);
  stream.Queue([config, kernel, thread = std::move(thread)] { run_grid(config, kernel, thread); });
  note_queued(kernel);
  return cudaSuccess;
}

std::atomic<int> g_waits = 0;
std::array<std::atomic<int>, kDevices> g_trims{};
int trims(int device) { return g_trims[static_cast<std::size_t>(device)]; }

bool g_capturing = false;
void set_capturing(bool capturing) { g_capturing = capturing; }

/// Adds 1 to the number of times that the host has waited for a device. Returns an error during the
/// capture of a graph, in which such a wait is not permitted.
cudaError_t begin_wait() {
  ++g_waits;
  return g_capturing ? failed(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

void queue_work(cudaStream_t stream, Work work) { Stream::Of(stream).Queue(std::move(work)); }

int device_of(cudaStream_t stream) { return Stream::Of(stream).device(); }

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
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetDevice(int* device) {
  *device = cuda_on_cpu::t_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!cuda_on_cpu::is_device(device)) return cuda_on_cpu::failed(cudaErrorInvalidDevice);
  cuda_on_cpu::t_device = device;
  return cudaSuccess;
}
/// Reports one processor. A grid is then small, so loops with a grid's stride run many times.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  if (!cuda_on_cpu::is_device(device)) return cuda_on_cpu::failed(cudaErrorInvalidDevice);
  *value = 1;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return cuda_on_cpu::allocate(cuda_on_cpu::t_device, memory, bytes, false);
}
/// Frees memory of any device, after that device has done all its queued work.
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  const int device = Memory::DeviceOf(memory);
  if (device < 0) return cuda_on_cpu::failed(cudaErrorInvalidValue);
  Stream::RunAllOf(device);
  Memory::Of(device).Free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = Memory::AllocatePinned(bytes);
  return *memory == nullptr ? cuda_on_cpu::failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
/// Frees pinned memory after all devices have done their queued work, because any device may use
/// this memory.
cudaError_t cudaFreeHost(void* memory) {
  for (int device = 0; device < cuda_on_cpu::kDevices; ++device) Stream::RunAllOf(device);
  Memory::FreePinned(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  const int device = Memory::DeviceOf(memory);
  if (device < 0) return cuda_on_cpu::failed(cudaErrorInvalidValue);
  Stream& order = Stream::Of(stream);
  if (order.device() != device) {
    cuda_on_cpu::fail("memory of device " + std::to_string(device) +
                      " is freed in the order of a stream of device " +
                      std::to_string(order.device()));
  }
  order.Queue([device, memory] { Memory::Of(device).Free(memory); });
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  const int device = properties->location.id;
  if (!cuda_on_cpu::is_device(device)) return cuda_on_cpu::failed(cudaErrorInvalidValue);
  *pool = new cuda_on_cpu::Pool{device};
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t) {
  ++cuda_on_cpu::g_trims[static_cast<std::size_t>(pool->device)];
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t) {
  return cuda_on_cpu::allocate(pool->device, memory, bytes, true);
}

/// If the source is pageable memory, it is read before the call returns. If the destination is
/// pageable, the copy has arrived by then.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Stream& order = Stream::Of(stream);
  if (!cuda_on_cpu::may_copy(order.device(), from) || !cuda_on_cpu::may_copy(order.device(), to)) {
    return cuda_on_cpu::failed(cudaErrorInvalidValue);
  }
  if (Memory::IsKnown(from)) {
    order.Queue([=] { cuda_on_cpu::copy(to, from, bytes); });
  } else {
    const auto* first = static_cast<const std::uint8_t*>(from);
    order.Queue([to, staged = std::vector<std::uint8_t>(first, first + bytes)] {
      cuda_on_cpu::copy(to, staged.data(), staged.size());
    });
  }
  if (!Memory::IsKnown(to)) order.Run();
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  Stream& order = Stream::Of(stream);
  if (Memory::DeviceOf(to) != order.device()) return cuda_on_cpu::failed(cudaErrorInvalidValue);
  order.Queue([=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const cudaError_t status = cuda_on_cpu::begin_wait();
  if (status == cudaSuccess) Stream::RunAllOf(cuda_on_cpu::t_device);
  return status;
}
/// The emulation makes no graph, so nothing is done here.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cuda_on_cpu::g_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream(cuda_on_cpu::t_device);
  return cudaSuccess;
}
/// Does not wait for the stream's queued work, as CUDA does not. The work still runs when somebody
/// waits for it.
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t status = cuda_on_cpu::begin_wait();
  if (status == cudaSuccess) Stream::Of(stream).Run();
  return status;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new cuda_on_cpu::Event{cuda_on_cpu::t_device};
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (Stream::Of(stream).device() != event->device) {
    return cuda_on_cpu::failed(cudaErrorInvalidResourceHandle);
  }
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

/// Returns how many times the host has waited for a stream. Such a wait is an error in the capture
/// of a graph.
int cuda_on_cpu_waits() { return cuda_on_cpu::g_waits; }
/// Returns the names of the kernels that were queued since the last call, one on each line. Only
/// the first 64 are recorded.
const char* cuda_on_cpu_kernels() {
  static std::string names;
  const std::lock_guard<std::mutex> lock(cuda_on_cpu::g_noting);
  names.clear();
  static std::map<const void*, std::string> known;  // name_of starts a process
  for (const void* kernel : std::exchange(cuda_on_cpu::g_noted, {})) {
    const auto [name, is_new] = known.try_emplace(kernel);
    if (is_new) name->second = cuda_on_cpu::name_of(kernel);
    names += name->second;
    if (!names.ends_with('\n')) names += '\n';
  }
  return names.c_str();
}
int cuda_on_cpu_trims() {
  int all = 0;
  for (int device = 0; device < cuda_on_cpu::kDevices; ++device) all += cuda_on_cpu::trims(device);
  return all;
}
/// Runs all queued work, and returns the number of allocations in the devices' memory.
std::int64_t cuda_on_cpu_pieces() {
  std::int64_t all = 0;
  for (int device = 0; device < cuda_on_cpu::kDevices; ++device) {
    Stream::RunAllOf(device);
    all += Memory::Of(device).pieces();
  }
  return all;
}

int cuDeviceGet(int* device, int number) {
  *device = number;
  return cuda_on_cpu::is_device(number) ? cudaSuccess : cudaErrorInvalidDevice;
}
/// Returns a device's context, which may be any address but null.
int cuDevicePrimaryCtxRetain(void** context, int device) {
  static std::array<char, cuda_on_cpu::kDevices> contexts;
  *context = &contexts[static_cast<std::size_t>(device)];
  return 0;
}
int cuCtxSetCurrent(void* context) {
  for (int device = 0; device < cuda_on_cpu::kDevices; ++device) {
    void* of = nullptr;
    cuDevicePrimaryCtxRetain(&of, device);
    if (of == context) return cudaSetDevice(device);
  }
  return cudaErrorInvalidValue;
}

}  // extern "C"
