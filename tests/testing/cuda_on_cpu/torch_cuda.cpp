// SPDX-License-Identifier: Apache-2.0
//
// torch's CUDA device on a CPU: memory and streams are runtime.cpp's, torch's own operators run on
// copies on the CPU, CPD's launch their kernels (kernels/cuda, compiled for the CPU). With this, as
// libtorch_cuda.so, a CPU build of torch has device "cuda"; python/sitecustomize.py does the rest.
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

#include <atomic>
#include <memory>

#include "tests/testing/cuda_on_cpu/cuda_runtime.h"
#include "tests/testing/cuda_on_cpu/memory.h"

namespace {

using at::Tensor;

const c10::Device kDevice(c10::kCUDA, 0);

// ---- memory, device, stream ---------------------------------------------------------------------

thread_local cudaStream_t t_stream = nullptr;

std::atomic<std::int64_t> g_asked = 0, g_allocated = 0, g_freed = 0;  // tensors' memory, so far
/// By number (g_asked), the first that is refused and the first that no longer is.
std::atomic<std::int64_t> g_refused_from = 0, g_refused_to = 0;

bool is_refused() {
  const std::int64_t number = g_asked++;
  return number >= g_refused_from && number < g_refused_to;
}

/// Memory that belongs to the stream that was torch's when it was made.
struct Block {
  void* memory = nullptr;
  cudaStream_t stream = t_stream;
};

/// In the stream's order: its work that is queued still has the memory, another stream's has not.
void free_block(void* freed) {
  const std::unique_ptr<Block> block(static_cast<Block*>(freed));
  ++g_freed;
  cudaFreeAsync(block->memory, block->stream);
}

/// What is freed in a stream's order is free once the stream has come to it.
bool fill(Block& block, std::size_t bytes) {
  if (cudaMalloc(&block.memory, bytes) == cudaSuccess) return true;
  cudaDeviceSynchronize();
  cudaGetLastError();
  return cudaMalloc(&block.memory, bytes) == cudaSuccess;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, kDevice};
    auto block = std::make_unique<Block>();
    if (is_refused() || !fill(*block, bytes)) {
      cudaGetLastError();
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory: ", bytes, " bytes");
    }
    ++g_allocated;
    void* const memory = block->memory;
    return {memory, block.release(), &free_block, kDevice};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, nullptr);
  }
};
DeviceAllocator g_allocator;
REGISTER_ALLOCATOR(c10::kCUDA, &g_allocator)

/// One device, one stream.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream getDefaultStream(c10::Device) const override { return getStream(kDevice); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return getStream(kDevice);
  }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(kDevice); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // Events: all that was queued is done when one is recorded.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static int recorded;
    *event = &recorded;
    cudaDeviceSynchronize();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override { cudaDeviceSynchronize(); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  void deviceSynchronize(c10::DeviceIndex) const override { cudaDeviceSynchronize(); }
};

// ---- operators ----------------------------------------------------------------------------------

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &g_allocator, keys,
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), &g_allocator, keys,
                                           c10::dtype_or_default(dtype));
}

/// The tensor's memory as the host's, while the device works for it.
Tensor as_host(const Tensor& x) {
  if (!x.is_cuda()) return x;
  const auto options = x.options().device(c10::kCPU);
  if (x.numel() == 0) return at::empty_strided(x.sizes(), x.strides(), options);
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), options);
}

Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  cudaDeviceSynchronize();
  const cuda_on_cpu::Memory::Access access;
  Tensor host = as_host(to);
  host.copy_(as_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  Tensor target = to;
  return copy_(target, from, false);
}

/// Room for so many bytes in x's storage, which keeps what it holds.
void grow(const Tensor& x, std::size_t bytes) {
  const c10::Storage& storage = x.storage();
  if (storage.nbytes() >= bytes) return;
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

void on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
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

int aoti_torch_get_current_cuda_stream(std::int32_t /*device*/, void** stream) {
  *stream = t_stream;
  return 0;
}

std::int64_t cuda_on_cpu_asked() { return g_asked; }
std::int64_t cuda_on_cpu_allocated() { return g_allocated; }
std::int64_t cuda_on_cpu_freed() { return g_freed; }
/// Refuses torch memory `count` times, after it was given `after` times from now on.
void cuda_on_cpu_refuse(std::int64_t after, std::int64_t count) {
  g_refused_from = g_asked + after;
  g_refused_to = g_refused_from + count;
}

void* cuda_on_cpu_new_stream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}
void* cuda_on_cpu_stream() { return t_stream; }
void cuda_on_cpu_use_stream(void* stream) { t_stream = static_cast<cudaStream_t>(stream); }
/// What comes later on `stream` waits for what is queued on `other`.
void cuda_on_cpu_wait_for(void* stream, void* other) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, static_cast<cudaStream_t>(other));
  cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0);
  cudaEventDestroy(event);
}
void cuda_on_cpu_synchronize() { cudaDeviceSynchronize(); }
/// Does what is queued on the stream, and what that waits for, and no other work.
void cuda_on_cpu_synchronize_stream(void* stream) {
  cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
}

}  // extern "C"
