// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"

namespace {

const char* Describe(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }

constexpr cpd::cuda::Api kApi = {
    sizeof(cpd::RoundPlan), sizeof(cpd::cuda::Strided), Describe,
    cpd::cuda::cast,        cpd::cuda::encode,          cpd::cuda::decode,
    cpd::cuda::greatest,
};

}  // namespace

extern "C" const cpd::cuda::Api* cpd_cuda_api() { return &kApi; }
