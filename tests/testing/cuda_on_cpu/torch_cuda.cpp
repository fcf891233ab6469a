// SPDX-License-Identifier: Apache-2.0
//
// Replaces libtorch_cuda.so: gives a CPU build of torch the devices "cuda:0" and "cuda:1".
// runtime.cpp emulates their memory and streams. torch's own operators run on copies of tensors on
// the CPU. CPD's operators launch their kernels (kernels/cuda, compiled for the CPU).
// python/sitecustomize.py provides the Python side.
#include <ATen/DeviceGuard.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <memory>

#include "tests/testing/cuda_on_cpu/cuda_runtime.h"
#include "tests/testing/cuda_on_cpu/memory.h"

namespace {

using at::Tensor;

// ---- memory, device, stream ---------------------------------------------------------------------

using cuda_on_cpu::kDevices;
using cuda_on_cpu::Memory;

int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

c10::Device device_number(int device) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(device)};
}

/// Makes a device current while the object lives.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(current_device()) { cudaSetDevice(device); }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_;
};

/// Runs the work that is queued on all streams of a device; returns when this work is done.
void synchronize(int device) {
  const OnDevice on(device);
  cudaDeviceSynchronize();
}

/// The current stream of this thread on each device. Null means the default stream.
thread_local std::array<cudaStream_t, kDevices> t_streams{};

cudaStream_t& stream_of(int device) { return t_streams.at(static_cast<std::size_t>(device)); }

std::atomic<std::int64_t> g_asked = 0, g_allocated = 0, g_freed = 0;  // tensors' memory, so far
/// Requests for memory are numbered by g_asked. Requests number g_refused_from to g_refused_to - 1
/// are refused.
std::atomic<std::int64_t> g_refused_from = 0, g_refused_to = 0;

bool is_refused() {
  const std::int64_t number = g_asked++;
  return number >= g_refused_from && number < g_refused_to;
}

/// An allocation on the current device. The allocation belongs to the stream that was torch's
/// current one when it was made.
struct Block {
  void* memory = nullptr;
  int device = current_device();
  cudaStream_t stream = stream_of(device);
};

/// Frees memory in the stream's order: work already queued on that stream may still use it, and
/// work on other streams may not.
void free_block(void* freed) {
  const std::unique_ptr<Block> block(static_cast<Block*>(freed));
  ++g_freed;
  const OnDevice on(block->device);
  cudaFreeAsync(block->memory, block->stream);
}

/// Allocates the block. If this fails, waits for the device and tries again. Memory that was freed
/// in a stream's order becomes free only when the stream has reached that point.
bool fill(Block& block, std::size_t bytes) {
  if (cudaMalloc(&block.memory, bytes) == cudaSuccess) return true;
  cudaDeviceSynchronize();
  cudaGetLastError();
  return cudaMalloc(&block.memory, bytes) == cudaSuccess;
}

/// torch's allocator. The allocator allocates on the current device.
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device = device_number(current_device());
    if (bytes == 0) return {nullptr, device};
    auto block = std::make_unique<Block>();
    if (is_refused() || !fill(*block, bytes)) {
      cudaGetLastError();
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory: ", bytes, " bytes");
    }
    ++g_allocated;
    void* const memory = block->memory;
    return {memory, block.release(), &free_block, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, nullptr);
  }
};
DeviceAllocator g_allocator;
REGISTER_ALLOCATOR(c10::kCUDA, &g_allocator)

/// Tells torch the current device and stream. Each device has one stream for torch.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return device_number(current_device()); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(cudaSetDevice(device.index()) == cudaSuccess, "CUDA error: invalid device ordinal");
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    cudaSetDevice(device.index());
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  // Records an event by doing all queued work at once, so every event is already complete.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static int recorded;
    *event = &recorded;
    synchronize(stream.device_index());
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize(device); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  int getNumGPUs() const override { return kDevices; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(::current_device());
  }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  void deviceSynchronize(c10::DeviceIndex device) const override { synchronize(device); }
};

// ---- operators ----------------------------------------------------------------------------------

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard on(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &g_allocator, keys,
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard on(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), &g_allocator, keys,
                                           c10::dtype_or_default(dtype));
}

/// Returns the tensor's memory as a CPU tensor. The CPU tensor may be used only while the device
/// works (Memory::Access).
Tensor as_host(const Tensor& x) {
  if (!x.is_cuda()) return x;
  const auto options = x.options().device(c10::kCPU);
  if (x.numel() == 0) return at::empty_strided(x.sizes(), x.strides(), options);
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), options);
}

/// Prepares a copy between two tensors: does all queued work of their devices, and returns the
/// devices whose memory the copy accesses.
Memory::Devices ready_devices(const Tensor& to, const Tensor& from) {
  Memory::Devices devices = 0;
  for (const Tensor* x : {&to, &from}) {
    if (!x->is_cuda()) continue;
    synchronize(x->get_device());
    devices |= Memory::Only(x->get_device());
  }
  return devices;
}

/// Tensors are created before the devices' lock is taken, and destroyed after it is released. torch
/// needs the GIL to destroy a tensor that Python knows. A thread that holds the GIL may wait for
/// the lock to free memory, so the opposite order could deadlock.
Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  Tensor host = as_host(to);
  const Tensor source = as_host(from);
  const Memory::Access access(ready_devices(to, from));
  host.copy_(source);
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  Tensor target = to;
  return copy_(target, from, false);
}

/// Enlarges x's storage to at least `bytes` bytes, and preserves its contents.
void grow(const Tensor& x, std::size_t bytes) {
  const c10::Storage& storage = x.storage();
  if (storage.nbytes() >= bytes) return;
  const OnDevice on(x.get_device());
  c10::DataPtr memory = g_allocator.allocate(bytes);
  if (storage.nbytes() > 0) g_allocator.copy_data(memory.get(), storage.data(), storage.nbytes());
  cudaDeviceSynchronize();
  storage.set_data_ptr(std::move(memory));
  storage.set_nbytes(bytes);
}

const Tensor& resize_(const Tensor& x, c10::SymIntArrayRef size,
                      std::optional<at::MemoryFormat> format) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const std::int64_t values = x.storage_offset() + c10::multiply_integers(sizes);
  grow(x, static_cast<std::size_t>(values) * x.element_size());
  x.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (format) x.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return x;
}

/// Refuses tensors of different devices, as torch's own kernels do.
void check_devices(const torch::jit::Stack& stack) {
  std::optional<c10::Device> first;
  const auto check = [&](const Tensor& x) {
    if (!x.defined() || !x.is_cuda()) return;
    if (!first) first = x.device();
    TORCH_CHECK(x.device() == *first,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *first, " and ", x.device(), "!");
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList()) {
      for (const Tensor& x : value.toTensorVector()) check(x);
    }
  }
}

void on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_devices(*stack);
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_copies>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize_);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
}

}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}

// ---- streams, for Python and for libcpd_torch ---------------------------------------------------

extern "C" {

int aoti_torch_get_current_cuda_stream(std::int32_t device, void** stream) {
  *stream = stream_of(device);
  return 0;
}

int cuda_on_cpu_devices() { return kDevices; }
int cuda_on_cpu_device() { return current_device(); }
int cuda_on_cpu_use_device(int device) { return cudaSetDevice(device); }

std::int64_t cuda_on_cpu_asked() { return g_asked; }
std::int64_t cuda_on_cpu_allocated() { return g_allocated; }
std::int64_t cuda_on_cpu_freed() { return g_freed; }
/// From now on, grants `after` requests for memory and then refuses `count` requests.
void cuda_on_cpu_refuse(std::int64_t after, std::int64_t count) {
  g_refused_from = g_asked + after;
  g_refused_to = g_refused_from + count;
}

void* cuda_on_cpu_new_stream(int device) {
  const OnDevice on(device);
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}
void* cuda_on_cpu_stream(int device) { return stream_of(device); }
void cuda_on_cpu_use_stream(int device, void* stream) {
  stream_of(device) = static_cast<cudaStream_t>(stream);
}
/// Makes later work on `stream` of `device` wait for the work queued on `other` of device `of`.
void cuda_on_cpu_wait_for(int device, void* stream, int of, void* other) {
  cudaEvent_t event = nullptr;
  {
    const OnDevice on(of);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, static_cast<cudaStream_t>(other));
  }
  const OnDevice on(device);
  cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0);
  cudaEventDestroy(event);
}
void cuda_on_cpu_synchronize(int device) { synchronize(device); }
/// Does the work that is queued on the stream, and the work of other streams for which the stream
/// waits. Does no other work.
void cuda_on_cpu_synchronize_stream(int device, void* stream) {
  const OnDevice on(device);
  cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
}

}  // extern "C"
