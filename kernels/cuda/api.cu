// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"

namespace {

const char* Describe(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }

constexpr cpd::cuda::Api kApi = {
    sizeof(cpd::RoundPlan),
    sizeof(cpd::cuda::Strided),
    sizeof(cpd::cuda::GemmCall),
    Describe,
    cpd::cuda::cast,
    cpd::cuda::encode,
    cpd::cuda::decode,
    cpd::cuda::greatest,
    cpd::cuda::gemm,
    cpd::cuda::first_outside,
    cpd::cuda::blas,
};

}  // namespace

extern "C" const cpd::cuda::Api* cpd_cuda_api() { return &kApi; }
