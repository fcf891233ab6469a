// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"

namespace {

const char* Describe(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }

constexpr cpd::cuda::Api kApi = {
    sizeof(cpd::RoundPlan),
    sizeof(cpd::cuda::Strided),
    sizeof(cpd::cuda::GemmCall),
    sizeof(cpd::cuda::ArithmeticCall),
    sizeof(cpd::cuda::SumCall),
    sizeof(cpd::cuda::ReduceCall),
    Describe,
    cpd::cuda::cast,
    cpd::cuda::encode,
    cpd::cuda::decode,
    cpd::cuda::greatest,
    cpd::cuda::gemm,
    cpd::cuda::first_outside,
    cpd::cuda::blas,
    cpd::cuda::arithmetic,
    cpd::cuda::sum,
    cpd::cuda::allocate,
    cpd::cuda::release,
    cpd::cuda::copy,
    cpd::cuda::open_stream,
    cpd::cuda::close_stream,
    cpd::cuda::order,
    cpd::cuda::wait,
    cpd::cuda::reduce,
    cpd::cuda::count,
    cpd::cuda::checksums,
};

}  // namespace

extern "C" const cpd::cuda::Api* cpd_cuda_api() { return &kApi; }
