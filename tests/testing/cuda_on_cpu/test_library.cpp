// SPDX-License-Identifier: Apache-2.0
//
// Tests the errors of libcpd_cuda and its memory, which comes from a pool or from a framework's
// allocator.
#include <dlfcn.h>
#include <gtest/gtest.h>  // before CUDA's words

#include <atomic>
#include <deque>
#include <string>
#include <utility>

#include "kernels/cuda/device.cuh"
#include "tests/testing/cuda_on_cpu/cuda_fp16.h"
#include "tests/testing/cuda_on_cpu/cuda_runtime.h"

namespace {

using cpd::Allocator;
using cpd::MemoryKind;
using Answer = Allocator::Answer;

class CudaLibrary : public ::testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen("libcpd_cuda.so", RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    api_ = reinterpret_cast<decltype(&cpd_backend)>(dlsym(library, "cpd_backend"))();
  }
  const cpd::Backend* api_ = nullptr;
};

TEST_F(CudaLibrary, ErrorsSayWhatHelps) {
  const auto text = [&](cudaError_t error) { return std::string(api_->describe(error)); };
  EXPECT_EQ(text(cudaErrorInvalidValue), "invalid argument");
  EXPECT_EQ(
      text(cudaErrorInsufficientDriver),
      "CUDA driver version is insufficient for CUDA runtime version (CUDA tensors need an NVIDIA "
      "GPU and its driver, 580 or newer: nvidia-smi shows which there is; Debian: "
      "nvidia-driver)");
  EXPECT_EQ(text(cudaErrorNoDevice),
            "no CUDA-capable device is detected (CUDA tensors need an NVIDIA GPU and its driver; "
            "Debian: nvidia-driver)");
  EXPECT_EQ(text(cudaErrorNoKernelImageForDevice),
            "no kernel image is available for execution on the device (this CPD was built for the "
            "architectures 90; CUDAARCHS names others, from 80 on)");
}

/// If a device has no memory left, the pool releases its unused memory and the request is repeated.
TEST_F(CudaLibrary, KeptMemoryIsGivenBackBeforeAnErrorIsReported) {
  const cpd::Launch launch;
  for (const auto kind : {MemoryKind::queued, MemoryKind::device}) {
    void* memory = nullptr;
    const int trims = cuda_on_cpu::trims(0);
    ASSERT_EQ(api_->allocate(launch, kind, 64, &memory), cudaSuccess);
    EXPECT_EQ(cuda_on_cpu::trims(0), trims);
    ASSERT_EQ(api_->release(launch, kind, memory), cudaSuccess);
    EXPECT_EQ(api_->allocate(launch, kind, std::int64_t{1} << 40, &memory),
              cudaErrorMemoryAllocation);
    EXPECT_EQ(cuda_on_cpu::trims(0), trims + 1);
    EXPECT_EQ(api_->release_unused(0), cudaSuccess);
    EXPECT_EQ(cuda_on_cpu::trims(0), trims + 2);
  }
}

/// Every function that waits must wait for the launch's device, not for the current device.
TEST_F(CudaLibrary, WaitsForTheSecondDevice) {
  const cpd::Launch launch{1};
  void* memory = nullptr;
  void* arrived = nullptr;
  ASSERT_EQ(api_->allocate(launch, MemoryKind::device, 1, &memory), cudaSuccess);
  ASSERT_EQ(api_->allocate(launch, MemoryKind::pinned, 1, &arrived), cudaSuccess);
  auto& value = *static_cast<std::uint8_t*>(arrived);
  const auto waits = [&](auto call) {
    value = 7;
    EXPECT_EQ(api_->clear(launch, memory, 1), cudaSuccess);
    {
      const cpd::cuda::OnDevice on(1);
      cudaMemcpyAsync(arrived, memory, 1, cudaMemcpyDeviceToHost, nullptr);
    }
    EXPECT_EQ(value, 7);
    call();
    EXPECT_EQ(value, 0);
  };
  waits([&] { EXPECT_EQ(api_->wait(launch), cudaSuccess); });
  waits([&] { EXPECT_EQ(api_->release_unused(1), cudaSuccess); });
  waits([&] {
    const int trims = cuda_on_cpu::trims(1);
    void* none = nullptr;
    EXPECT_EQ(api_->allocate(launch, MemoryKind::queued, std::int64_t{1} << 40, &none),
              cudaErrorMemoryAllocation);
    EXPECT_EQ(cuda_on_cpu::trims(1), trims + 1);
  });
  EXPECT_EQ(api_->release(launch, MemoryKind::device, memory), cudaSuccess);
  EXPECT_EQ(api_->release(launch, MemoryKind::pinned, arrived), cudaSuccess);
  int current = -1;
  cudaGetDevice(&current);
  EXPECT_EQ(current, 0);
}

/// A framework's allocator. Each call takes the first remaining element of `answers` as its answer.
/// If `owns` is true, the framework claims all memory that is to be released.
struct Framework {
  std::deque<Answer> answers;
  bool owns = false;
  int released = 0;
};
Framework g_framework;

Answer framework_allocate(int /*device*/, void* /*stream*/, std::int64_t bytes, void** memory) {
  const Answer answer = g_framework.answers.front();
  g_framework.answers.pop_front();
  if (answer == Answer::given) cudaMalloc(memory, static_cast<std::size_t>(bytes));
  return answer;
}

bool framework_release(void* memory) {
  if (!g_framework.owns) return false;
  ++g_framework.released;
  return cudaFree(memory) == cudaSuccess;
}

class WithFramework : public CudaLibrary {
 protected:
  static constexpr std::int64_t kBytes = 64;

  void SetUp() override {
    CudaLibrary::SetUp();
    api_->use_allocator_at(place_);
    place_ = &kFramework;
    g_framework = {};
  }
  void TearDown() override {
    place_ = nullptr;
    cuda_on_cpu::set_capturing(false);
    EXPECT_TRUE(g_framework.answers.empty()) << "was asked too seldom";
  }
  /// Allocates memory while the framework's allocator gives `answers`, and returns the status.
  int Allocate(std::deque<Answer> answers) {
    g_framework.answers = std::move(answers);
    const int before = cuda_on_cpu::trims(0);
    const int status = api_->allocate(launch_, MemoryKind::queued, kBytes, &memory_);
    trims_ = cuda_on_cpu::trims(0) - before;
    return status;
  }
  /// Releases the memory that Allocate made, to the framework or to the pool, and returns the
  /// status.
  int Release(bool to_framework) {
    g_framework.owns = to_framework;
    const int before = g_framework.released;
    const int status = api_->release(launch_, MemoryKind::queued, memory_);
    EXPECT_EQ(g_framework.released - before, to_framework ? 1 : 0);
    return status;
  }
  std::string OutOfMemory() const { return api_->describe(cudaErrorMemoryAllocation); }

  static constexpr Allocator kFramework{framework_allocate, framework_release};
  static inline std::atomic<const Allocator*> place_ = nullptr;
  const cpd::Launch launch_;
  void* memory_ = nullptr;
  int trims_ = 0;
};

TEST_F(WithFramework, GivesQueuedMemoryAlone) {
  EXPECT_EQ(Allocate({Answer::given}), cudaSuccess);
  EXPECT_EQ(trims_, 0);
  EXPECT_EQ(Release(true), cudaSuccess);
  for (const auto kind : {MemoryKind::device, MemoryKind::pinned}) {
    ASSERT_EQ(api_->allocate(launch_, kind, kBytes, &memory_), cudaSuccess);
    EXPECT_EQ(api_->release(launch_, kind, memory_), cudaSuccess);
  }
  EXPECT_EQ(g_framework.released, 1);
}

TEST_F(WithFramework, ThePoolServesStreamsThatAreNotItsOwn) {
  EXPECT_EQ(Allocate({Answer::not_mine}), cudaSuccess);
  EXPECT_EQ(trims_, 0);
  EXPECT_EQ(Release(false), cudaSuccess);
}

TEST_F(WithFramework, IsAskedOnceMoreWithoutWhatThePoolKeeps) {
  EXPECT_EQ(Allocate({Answer::none_left, Answer::given}), cudaSuccess);
  EXPECT_EQ(trims_, 1);
  EXPECT_EQ(Release(true), cudaSuccess);
}

TEST_F(WithFramework, ItsSecondRefusalIsTheError) {
  EXPECT_EQ(Allocate({Answer::none_left, Answer::none_left}), cudaErrorMemoryAllocation);
  EXPECT_EQ(trims_, 1);
  EXPECT_EQ(memory_, nullptr);
  EXPECT_EQ(OutOfMemory(), "out of memory: 64 bytes for CPD's own use");
  EXPECT_EQ(OutOfMemory(), "out of memory");  // of another call
  EXPECT_EQ(Allocate({Answer::given}), cudaSuccess);
  EXPECT_EQ(Release(true), cudaSuccess);
}

TEST_F(WithFramework, NothingIsWaitedForInACapture) {
  cuda_on_cpu::set_capturing(true);
  EXPECT_EQ(Allocate({Answer::none_left}), cudaErrorMemoryAllocation);
  EXPECT_EQ(trims_, 0);
  EXPECT_EQ(OutOfMemory(), "out of memory: 64 bytes for CPD's own use");
  cuda_on_cpu::set_capturing(false);
}

TEST_F(WithFramework, MayComeWhileMemoryOfThePoolIsInUse) {
  place_ = nullptr;
  EXPECT_EQ(Allocate({}), cudaSuccess);
  place_ = &kFramework;
  EXPECT_EQ(Release(false), cudaSuccess);
}

TEST_F(WithFramework, PinnedMemoryIsTheHosts) {
  EXPECT_EQ(api_->allocate(launch_, MemoryKind::pinned, std::int64_t{1} << 60, &memory_),
            cudaErrorMemoryAllocation);
  EXPECT_EQ(OutOfMemory(),
            "out of memory: 1152921504606846976 bytes for CPD's own use, pinned on the host");
}

}  // namespace
