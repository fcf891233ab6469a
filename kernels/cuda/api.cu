// SPDX-License-Identifier: Apache-2.0
//
// Defines the table of the CUDA library and the texts of its errors.
#include <string>

#include "kernels/cuda/device.cuh"

namespace {

/// Returns a remedy for an error or further information about it; an empty text if there is none.
std::string remedy_for(cudaError_t error) {
  const std::string need = " (CUDA tensors need an NVIDIA GPU and its driver";
  switch (error) {
    case cudaErrorInsufficientDriver:
      return need + ", " + (CUDART_VERSION >= 13000 ? "580" : "525") +
             " or newer: nvidia-smi shows which there is; Debian: nvidia-driver)";
    case cudaErrorMemoryAllocation:
      return cpd::cuda::take_lack();
    case cudaErrorNoDevice:
      return need + "; Debian: nvidia-driver)";
    case cudaErrorNoKernelImageForDevice:
      return " (this CPD was built for the architectures " CPD_CUDA_ARCHITECTURES
             "; CUDAARCHS names others, from 80 on)";
    default:
      return "";
  }
}

/// Returns the description of an error. The text is valid until this thread's next call.
const char* describe(int status) {
  static thread_local std::string text;
  const auto error = static_cast<cudaError_t>(status);
  text = cudaGetErrorString(error) + remedy_for(error);
  return text.c_str();
}

constexpr cpd::Backend kBackend = {
    .name = "cuda",
    .size = sizeof(cpd::Backend),
    .call_sizes = cpd::kCallSizes,
    .describe = describe,
    .use_allocator_at = cpd::cuda::use_allocator_at,
    .allocate = cpd::cuda::allocate,
    .release = cpd::cuda::release,
    .release_unused = cpd::cuda::release_unused,
    .copy = cpd::cuda::copy,
    .clear = cpd::cuda::clear,
    .open_stream = cpd::cuda::open_stream,
    .close_stream = cpd::cuda::close_stream,
    .order = cpd::cuda::order,
    .wait = cpd::cuda::wait,
    .product_path = cpd::cuda::product_path,
#define CPD_OP(name, Call) .name = cpd::cuda::name,
#include "cpd/backend/operations.def"
};

}  // namespace

extern "C" const cpd::Backend* cpd_backend() { return &kBackend; }
