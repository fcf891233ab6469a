// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "kernels/cuda/device.cuh"

namespace {

/// A remedy for an error, or more about it, or an empty text.
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

/// The description of an error, valid until the thread's next call.
const char* describe(int status) {
  static thread_local std::string text;
  const auto error = static_cast<cudaError_t>(status);
  text = cudaGetErrorString(error) + remedy_for(error);
  return text.c_str();
}

constexpr cpd::cuda::Api kApi = {
    .plan_size = sizeof(cpd::RoundPlan),
    .strided_size = sizeof(cpd::cuda::Strided),
    .call_size = sizeof(cpd::cuda::ScaledGemmCall),
    .arithmetic_size = sizeof(cpd::cuda::ArithmeticCall),
    .sum_size = sizeof(cpd::cuda::SumCall),
    .fixed_size = sizeof(cpd::cuda::FixedSumCall),
    .hadamard_size = sizeof(cpd::cuda::HadamardCall),
    .scales_size = sizeof(cpd::cuda::ScalesCall),
    .reduce_size = sizeof(cpd::cuda::ReduceCall),
    .virtual_size = sizeof(cpd::cuda::VirtualCall),
    .level_size = sizeof(cpd::cuda::LevelCall),
    .quantized_size = sizeof(cpd::cuda::QuantizedCall),
    .top_k_size = sizeof(cpd::cuda::TopKCall),
    .describe = describe,
    .cast = cpd::cuda::cast,
    .encode = cpd::cuda::encode,
    .decode = cpd::cuda::decode,
    .first_above = cpd::cuda::first_above,
    .gemm = cpd::cuda::gemm,
    .gemm_scaled = cpd::cuda::gemm_scaled,
    .first_outside = cpd::cuda::first_outside,
    .blas = cpd::cuda::blas,
    .arithmetic = cpd::cuda::arithmetic,
    .sum = cpd::cuda::sum,
    .sum_fixed = cpd::cuda::sum_fixed,
    .hadamard = cpd::cuda::hadamard,
    .cast_scaled = cpd::cuda::cast_scaled,
    .cast_both = cpd::cuda::cast_both,
    .encode_scaled = cpd::cuda::encode_scaled,
    .decode_scaled = cpd::cuda::decode_scaled,
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
    .reduce = cpd::cuda::reduce,
    .cast_terms = cpd::cuda::cast_terms,
    .fold_ranks = cpd::cuda::fold_ranks,
    .finish_sums = cpd::cuda::finish_sums,
    .count = cpd::cuda::count,
    .level_norms = cpd::cuda::level_norms,
    .round_levels = cpd::cuda::round_levels,
    .encode_levels = cpd::cuda::encode_levels,
    .decode_levels = cpd::cuda::decode_levels,
    .bucket_scales = cpd::cuda::bucket_scales,
    .round_quantized = cpd::cuda::round_quantized,
    .encode_quantized = cpd::cuda::encode_quantized,
    .decode_quantized = cpd::cuda::decode_quantized,
    .one_bit_means = cpd::cuda::one_bit_means,
    .round_one_bit = cpd::cuda::round_one_bit,
    .encode_one_bit = cpd::cuda::encode_one_bit,
    .decode_one_bit = cpd::cuda::decode_one_bit,
    .add_residual = cpd::cuda::add_residual,
    .take_errors = cpd::cuda::take_errors,
    .select_top_k = cpd::cuda::select_top_k,
    .round_top_k = cpd::cuda::round_top_k,
    .gather_top_k = cpd::cuda::gather_top_k,
    .count_top_k = cpd::cuda::count_top_k,
    .checksums = cpd::cuda::checksums,
};

}  // namespace

extern "C" const cpd::cuda::Api* cpd_cuda_api() { return &kApi; }
