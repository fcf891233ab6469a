// SPDX-License-Identifier: Apache-2.0
//
// What libcpd_cuda gives to libcpd: one table of functions, found by name when the library is
// loaded. Arguments are checked already. Every function queues its work on a stream and returns a
// cudaError_t as an int (0: queued); those that return a value through a pointer wait for it.
#pragma once

#include <array>
#include <cstdint>

#include "cpd/base/product.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/levels.h"
#include "cpd/numeric/plan.h"

namespace cpd::cuda {

/// A tensor's memory as a kernel walks it: dimensions that lie within one another are merged, so
/// that a contiguous tensor has one dimension of stride 1.
struct Strided {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int32_t rank = 1;
  std::array<std::int64_t, TensorView::kMaxRank> shape{};
  std::array<std::int64_t, TensorView::kMaxRank> stride{};
};

/// Where seed and stream lie in device memory, instead of in the plan: read when the kernel runs,
/// so that a captured CUDA graph takes new ones at each replay. Null: the plan's own.
struct Key {
  const std::uint64_t* seed = nullptr;
  const std::uint64_t* stream = nullptr;
};

struct Launch {
  int device = 0;
  void* stream = nullptr;
};

/// A product and its accumulator; `key` in place of the seed and stream in `levels`.
struct GemmCall {
  MatrixProduct product;
  Levels levels;
  Key key;
};

struct Api {
  /// sizeof of RoundPlan, Strided and GemmCall as the library was built with.
  std::uint32_t plan_size;
  std::uint32_t strided_size;
  std::uint32_t call_size;
  const char* (*describe)(int status);

  /// out[i] = round(x[i]); `random` may be null. out may be x.
  int (*cast)(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
              const Strided& x, const Strided* random, const Strided& out);
  /// Rounds and packs. Where the format has no code for NaN it waits for the stream and sets
  /// *first_nan to the least index of one, or -1; elsewhere it sets -1 at once.
  int (*encode)(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
                const Strided& x, const Strided* random, std::uint8_t* packed,
                std::int64_t* first_nan);
  int (*decode)(const Launch& launch, const RoundPlan& plan, std::int64_t n,
                const std::uint8_t* packed, const Strided& out);
  /// The greatest of n integers; waits for it.
  int (*greatest)(const Launch& launch, std::int64_t n, const Strided& integers,
                  std::uint32_t* result);

  /// The product, which is not empty (but its depth may be 0).
  int (*gemm)(const Launch& launch, const GemmCall& call);
  /// The least i whose x[i] is finite and not a value of the plan's format, or -1; waits for it.
  int (*first_outside)(const Launch& launch, const RoundPlan& plan, std::int64_t n,
                       const Strided& x, std::int64_t* first);
  /// The product by cuBLAS, all binary32. Sets *error, on failure, to what could not be done (a
  /// text that stays), if it was not a call to CUDA that failed.
  int (*blas)(const Launch& launch, const MatrixProduct& product, const char** error);
};

}  // namespace cpd::cuda

extern "C" CPD_API const cpd::cuda::Api* cpd_cuda_api();
