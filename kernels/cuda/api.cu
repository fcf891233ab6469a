// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"

namespace {

const char* Describe(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }

constexpr cpd::cuda::Api kApi = {
    .plan_size = sizeof(cpd::RoundPlan),
    .strided_size = sizeof(cpd::cuda::Strided),
    .call_size = sizeof(cpd::cuda::ScaledGemmCall),
    .arithmetic_size = sizeof(cpd::cuda::ArithmeticCall),
    .sum_size = sizeof(cpd::cuda::SumCall),
    .hadamard_size = sizeof(cpd::cuda::HadamardCall),
    .reduce_size = sizeof(cpd::cuda::ReduceCall),
    .describe = Describe,
    .cast = cpd::cuda::cast,
    .encode = cpd::cuda::encode,
    .decode = cpd::cuda::decode,
    .greatest = cpd::cuda::greatest,
    .gemm = cpd::cuda::gemm,
    .gemm_scaled = cpd::cuda::gemm_scaled,
    .first_outside = cpd::cuda::first_outside,
    .blas = cpd::cuda::blas,
    .arithmetic = cpd::cuda::arithmetic,
    .sum = cpd::cuda::sum,
    .hadamard = cpd::cuda::hadamard,
    .allocate = cpd::cuda::allocate,
    .release = cpd::cuda::release,
    .copy = cpd::cuda::copy,
    .open_stream = cpd::cuda::open_stream,
    .close_stream = cpd::cuda::close_stream,
    .order = cpd::cuda::order,
    .wait = cpd::cuda::wait,
    .reduce = cpd::cuda::reduce,
    .count = cpd::cuda::count,
    .checksums = cpd::cuda::checksums,
};

}  // namespace

extern "C" const cpd::cuda::Api* cpd_cuda_api() { return &kApi; }
