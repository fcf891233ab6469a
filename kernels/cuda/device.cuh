// SPDX-License-Identifier: Apache-2.0
//
// What the kernels share: elements of any float type and stride, the walk that gives each thread
// the elements of one Philox block, and launches.
#pragma once

#include <cuda_runtime.h>

#include "cpd/numeric/philox.h"
#include "cpd/numeric/round.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/cuda_api.h"
#include "kernels/cuda/elements.h"

namespace cpd::cuda {

#define CPD_DEVICE __device__ __forceinline__

// --- elements ------------------------------------------------------------------------------------

CPD_DEVICE std::int64_t offset_of(const Strided& t, std::int64_t i) {
  if (t.rank == 1) return i * t.stride[0];
  std::int64_t offset = 0;
  for (int d = t.rank - 1; d > 0; --d) {
    offset += i % t.shape[d] * t.stride[d];
    i /= t.shape[d];
  }
  return offset + i * t.stride[0];
}

/// Element i as V, exactly; fp64 only where V is double.
template <class V>
CPD_DEVICE V load_element(const Strided& t, std::int64_t i) {
  const std::int64_t at = offset_of(t, i);
  if (t.dtype == DType::f64) return static_cast<V>(static_cast<const double*>(t.data)[at]);
  return value_at(t.data, t.dtype, at);
}

/// Stores a value that the type holds.
template <class V>
CPD_DEVICE void store_element(const Strided& t, std::int64_t i, V value) {
  const std::int64_t at = offset_of(t, i);
  if (t.dtype == DType::f64) {
    static_cast<double*>(t.data)[at] = convert_value<double>(value);
  } else {
    set_value_at(t.data, t.dtype, at, convert_value<float>(value));
  }
}

inline bool is_contiguous(const Strided& t, DType type) {
  return t.dtype == type && t.rank == 1 && t.stride[0] == 1;
}

// --- the walk ------------------------------------------------------------------------------------

/// Where random integers come from: the tensor, if its data is not null, or Philox.
struct Source {
  std::uint64_t seed;
  std::uint64_t stream;
  Strided given;
};

CPD_DEVICE Source source_of(const RoundPlan& plan, const Key& key, const Strided& given) {
  return {key.seed != nullptr ? *key.seed : plan.seed,
          key.stream != nullptr ? *key.stream : plan.stream, given};
}

/// Elements that share one Philox block: 64 a word's draws, of which each of 16 lanes has every
/// 16th.
CPD_FN constexpr int draws_of(Rounding mode, int random_bits) {
  return mode == Rounding::stochastic ? draws_per_word(random_bits) : 4;
}

// Plans and tensors have many branches that are the same for all threads: unrolled, their copies
// multiply, and the compiler takes minutes.

/// Calls visit(i, R) for the elements below n of Philox index `index` (philox.h): 16 threads side
/// by side read 16 elements side by side. Without random bits it walks the same way, R = 0.
template <Rounding mode, class Visit>
CPD_DEVICE void for_elements(std::int64_t index, std::int64_t n, const RoundPlan& plan,
                             const Source& source, Visit visit) {
  const int draws = draws_of(mode, plan.random_bits);
  const std::int64_t base = 64 * draws * (index / 16) + index % 16;
  Words<std::uint32_t> words{};
  const bool generate = mode == Rounding::stochastic && source.given.data == nullptr;
  if (generate) {
    const auto at = static_cast<std::uint64_t>(index);
    words = random_words(static_cast<std::uint32_t>(at), at, 0, source.seed, source.stream);
  }
  const std::uint32_t mask = (1U << plan.random_bits) - 1;
  const int width = 32 / draws;
#pragma unroll 1
  for (std::int64_t i = base; i < n && i < base + 64 * draws; i += 16) {
    std::uint32_t random = 0;
    if constexpr (mode == Rounding::stochastic) {
      if (generate) {
        random = words.word[0] & mask;
        words = {{words.word[1], words.word[2], words.word[3], words.word[0] >> width % 32}};
      } else {
        const auto* given = static_cast<const std::uint32_t*>(source.given.data);
        random = given[offset_of(source.given, i)];
      }
    }
    visit(i, random);
  }
}

// --- launches ------------------------------------------------------------------------------------

/// Makes a device the thread's current one while alive, and forgets an earlier call's error, which
/// cudaGetLastError would report as this launch's.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetLastError();
    status_ = cudaGetDevice(&before_);
    if (status_ != cudaSuccess || before_ == device) return;
    status_ = cudaSetDevice(device);
    changed_ = status_ == cudaSuccess;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] cudaError_t status() const { return status_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t status_;
};

/// Blocks for `work` threads' worth of grid-stride loop on the current device.
inline unsigned blocks_for(std::int64_t blocks_needed) {
  int device = 0;
  int processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const std::int64_t most = std::int64_t{32} * processors;
  return static_cast<unsigned>(blocks_needed < most ? blocks_needed : most);
}

/// True where rounding starts from binary64: an fp64 input, or a grid that binary32 cannot work on.
inline bool needs_binary64(const RoundPlan& plan, const Strided& x) {
  return plan.wide || x.dtype == DType::f64;
}

int cast(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
         const Strided& x, const Strided* random, const Strided& out);
int encode(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
           const Strided& x, const Strided* random, std::uint8_t* packed, std::int64_t* first_nan);
int decode(const Launch& launch, const RoundPlan& plan, std::int64_t n, const std::uint8_t* packed,
           const Strided& out);
int greatest(const Launch& launch, std::int64_t n, const Strided& integers, std::uint32_t* result);
int gemm(const Launch& launch, const GemmCall& call);
int first_outside(const Launch& launch, const RoundPlan& plan, std::int64_t n, const Strided& x,
                  std::int64_t* first);
int blas(const Launch& launch, const MatrixProduct& product, const char** error);
int allocate(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory);
int release(const Launch& launch, MemoryKind kind, void* memory);
int copy(const Launch& launch, void* to, const void* from, std::int64_t bytes);
int open_stream(int device, void** stream);
int close_stream(int device, void* stream);
int order(const Launch& launch, void* after);
int wait(const Launch& launch);
int reduce(const Launch& launch, const ReduceCall& call);
int count(const Launch& launch, const ReduceCall& call, bool casts, SegmentCounts* counts);
int checksums(const Launch& launch, int n, const Bytes* bytes, std::uint32_t* crcs);

/// Device memory for one value, initialised, and its way back to the host.
template <class T>
class Result {
 public:
  Result(cudaStream_t stream, T initial) : stream_(stream), value_(initial) {
    status_ = cudaMallocAsync(reinterpret_cast<void**>(&memory_), sizeof(T), stream);
    if (status_ == cudaSuccess) {
      status_ = cudaMemcpyAsync(memory_, &value_, sizeof(T), cudaMemcpyHostToDevice, stream);
    }
  }
  ~Result() {
    if (memory_ != nullptr) cudaFreeAsync(memory_, stream_);
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  [[nodiscard]] cudaError_t status() const { return status_; }
  [[nodiscard]] T* memory() const { return memory_; }
  /// Waits for the stream's work.
  cudaError_t read(T* to) {
    const cudaError_t copied =
        cudaMemcpyAsync(to, memory_, sizeof(T), cudaMemcpyDeviceToHost, stream_);
    return copied == cudaSuccess ? cudaStreamSynchronize(stream_) : copied;
  }

 private:
  cudaStream_t stream_;
  T value_;
  T* memory_ = nullptr;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace cpd::cuda
