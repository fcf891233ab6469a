// SPDX-License-Identifier: Apache-2.0
//
// Emulates the four functions of cuBLAS that kernels/cuda/blas.cu calls. The work is queued on the
// stream like a kernel. Matrices are in column order. Each sum is computed in binary64 and rounded
// once, so it is within any error bound of cuBLAS.
#include <memory>
#include <vector>

#include "tests/testing/cuda_on_cpu/cuda_runtime.h"

namespace {

/// A cuBLAS context. The context works only on the device that was current when the context was
/// created, and only with streams of that device.
struct Context {
  int device = 0;
  cudaStream_t stream = nullptr;

  [[nodiscard]] bool is_usable() const {
    int current = 0;
    cudaGetDevice(&current);
    return current == device && cuda_on_cpu::device_of(stream) == device;
  }
};

struct Matrix {
  const float* data;
  int leading;
  bool is_transposed;
  double at(int row, int column) const {
    const std::int64_t place =
        is_transposed ? column + std::int64_t{row} * leading : row + std::int64_t{column} * leading;
    return data[place];
  }
};

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  static auto& all =
      *new std::vector<std::unique_ptr<Context>>;  // their caller ends with the process
  auto context = std::make_unique<Context>();
  cudaGetDevice(&context->device);
  *handle = all.emplace_back(std::move(context)).get();
  return 0;
}
int cublasSetStream_v2(void* handle, cudaStream_t stream) {
  static_cast<Context*>(handle)->stream = stream;
  return 0;
}
int cublasSetMathMode(void*, int) { return 0; }

int cublasSgemmStridedBatched(void* handle, int op_a, int op_b, int m, int n, int k,
                              const float* alpha, const float* a, int lda, long long stride_a,
                              const float* b, int ldb, long long stride_b, const float* beta,
                              float* c, int ldc, long long stride_c, int batch) {
  if (lda < std::max(1, op_a == 0 ? m : k) || ldb < std::max(1, op_b == 0 ? k : n) ||
      ldc < std::max(1, m) || m < 0 || n < 0 || k < 0 || batch < 0) {
    return 7;  // CUBLAS_STATUS_INVALID_VALUE
  }
  if (!static_cast<Context*>(handle)->is_usable()) return 13;  // CUBLAS_STATUS_EXECUTION_FAILED
  const auto product = [=, alpha = *alpha, beta = *beta] {
    for (int turn = 0; turn < batch; ++turn) {
      const Matrix x{a + turn * stride_a, lda, op_a != 0};
      const Matrix y{b + turn * stride_b, ldb, op_b != 0};
      for (int column = 0; column < n; ++column) {
        for (int row = 0; row < m; ++row) {
          float& to = c[turn * stride_c + row + std::int64_t{column} * ldc];
          double sum = 0;
          for (int i = 0; i < k; ++i) sum += x.at(row, i) * y.at(i, column);
          to = static_cast<float>(alpha * sum + double{beta} * to);
        }
      }
    }
  };
  cuda_on_cpu::queue_work(static_cast<Context*>(handle)->stream, product);
  return 0;
}

}  // extern "C"
