// SPDX-License-Identifier: Apache-2.0
//
// Tests CUDA tensors without a GPU: the arguments that are refused before a kernel runs, and the
// errors of a missing library, driver or device.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/device_memory.h"
#include "cpd/backend/faults.h"
#include "cpd/backend/queue.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/comm/transport/local.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/gemm.h"
#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "tests/testing/cuda_memory.h"
#include "tests/testing/gemm.h"

namespace cpd {
namespace {

class Cuda : public ::testing::Test {
 protected:
  static constexpr std::int64_t n = 64;

  [[nodiscard]] TensorView X() const { return View(x_.data(), DType::f32, n); }
  [[nodiscard]] TensorView Y() { return View(y_.data(), DType::f32, n); }
  [[nodiscard]] TensorView Codes() { return View(codes_.data(), DType::u8, n); }
  [[nodiscard]] TensorView Integers() const { return View(integers_.data(), DType::u32, n); }
  /// Returns a view of the 64 elements of x as an 8 x 8 matrix.
  static TensorView Matrix(TensorView x) {
    const std::array<std::int64_t, 2> shape{8, 8};
    TensorView view = View(x.data, x.dtype, shape);
    view.device = x.device;
    view.device_index = x.device_index;
    return view;
  }
  static TensorView OnGpu(TensorView view) {
    view.device = Device::cuda;
    return view;
  }
  /// Expects that `call` throws a `Kind` (default: Error) whose text contains `what`, and that the
  /// call has not written anything.
  template <class Kind = Error>
  void ExpectError(const std::string& what, const std::function<void()>& call) const {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown; expected: " << what;
    } catch (const Kind& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
    EXPECT_EQ(y_, std::vector<float>(n, 7.0F));
    EXPECT_EQ(codes_, std::vector<std::uint8_t>(n, 7));
  }

  const Format format_ = ParseFormat("e4m3");
  const std::vector<float> x_ = std::vector<float>(n, 1.1F);
  const std::vector<std::uint32_t> integers_ = std::vector<std::uint32_t>(n, 1);
  std::vector<float> y_ = std::vector<float>(n, 7.0F);
  std::vector<std::uint8_t> codes_ = std::vector<std::uint8_t>(n, 7);
};

TEST_F(Cuda, NumbersOnTheGpuAreRefusedOnTheCpu) {
  const std::uint64_t number = 3;
  for (const bool is_seed : {true, false}) {
    RoundingOptions options;
    options.mode = Rounding::stochastic;
    RandomKey key;
    (is_seed ? key.device_seed : key.device_stream) = &number;
    const char* what = "device_seed and device_stream are for tensors on another device";
    const TensorView row = View(x_.data(), DType::f32, std::array<std::int64_t, 2>{1, n});
    const TensorView words = View(y_.data(), DType::u32, n);
    ExpectError(what, [&] { Cast(X(), format_, options, Y(), key); });
    ExpectError(what, [&] { Encode(X(), format_, options, Codes(), key); });
    ExpectError(what, [&] { Add(X(), X(), format_, options, Y(), key); });
    ExpectError(what, [&] { Fma(X(), X(), X(), format_, options, Y(), key); });
    Accumulator accumulator;
    accumulator.rounding = options;
    ExpectError(what,
                [&] { Gemm(Matrix(X()), Matrix(X()), accumulator, Matrix(Y()), nullptr, key); });
    ExpectError(what, [&] { Sum(row, 0, {format_, Scheme::sequential, options}, Y(), key); });
    ExpectError(what, [&] { RandomIntegers(options, 0, words, key); });
    EXPECT_THROW(Check(key, false), Error);
    EXPECT_NO_THROW(Check(key, true));
  }
}

TEST_F(Cuda, AllTensorsAreOnOneDevice) {
  RoundingOptions options;
  options.mode = Rounding::stochastic;
  const char* what = "all tensors must be on one device";
  TensorView second = OnGpu(X());
  second.device_index = 1;
  const TensorView host = Integers();
  const TensorView device = OnGpu(Integers());
  ExpectError(what, [&] { Cast(OnGpu(X()), format_, {}, Y()); });
  ExpectError(what, [&] { Cast(second, format_, {}, OnGpu(Y())); });
  ExpectError(what, [&] { Encode(X(), format_, {}, OnGpu(Codes())); });
  ExpectError(what, [&] { Decode(OnGpu(Codes()), format_, Y()); });
  ExpectError(what, [&] { Cast(X(), format_, options, Y(), {}, &device); });
  ExpectError(what, [&] { Cast(OnGpu(X()), format_, options, OnGpu(Y()), {}, &host); });
  ExpectError(what, [&] { Encode(OnGpu(X()), format_, options, OnGpu(Codes()), {}, &host); });
  ExpectError(what, [&] { Add(OnGpu(X()), X(), kFp32, {}, OnGpu(Y())); });
  ExpectError(what, [&] { Fma(OnGpu(X()), OnGpu(X()), X(), kFp32, {}, OnGpu(Y())); });
  const TensorView x = Matrix(X());
  const TensorView y = Matrix(Y());
  const TensorView sums = View(y_.data(), DType::f32, 8);
  ExpectError(what, [&] { Sum(OnGpu(x), 0, {}, sums); });
  ExpectError(what, [&] { Sum(x, 0, {}, OnGpu(sums)); });
  for (const auto product : {+testing::kGemm, GemmByBlas}) {
    ExpectError(what, [&] { product(OnGpu(x), x, {}, OnGpu(y), nullptr); });
    ExpectError(what, [&] { product(x, Matrix(second), {}, y, nullptr); });
    ExpectError(what, [&] { product(OnGpu(x), OnGpu(x), {}, y, nullptr); });
    ExpectError(what, [&] { product(OnGpu(x), OnGpu(x), {}, OnGpu(y), &x); });
  }
}

TEST_F(Cuda, EmptyTensorsNeedNoGpu) {
  const TensorView none = OnGpu(View(nullptr, DType::f32, 0));
  const TensorView bytes = OnGpu(View(nullptr, DType::u8, 0));
  EXPECT_NO_THROW(Cast(none, format_, {}, none));
  EXPECT_NO_THROW(Encode(none, format_, {}, bytes));
  EXPECT_NO_THROW(Decode(bytes, format_, none));
  EXPECT_NO_THROW(Add(none, none, format_, {}, none));
  EXPECT_NO_THROW(
      Sum(OnGpu(View(nullptr, DType::f32, std::array<std::int64_t, 2>{0, 3})), 1, {}, none));
  const std::array<std::int64_t, 2> shape{0, 0};
  const TensorView empty = OnGpu(View(nullptr, DType::f32, shape));
  EXPECT_NO_THROW(Gemm(empty, empty, {}, empty));
  EXPECT_NO_THROW(GemmByBlas(empty, empty, {}, empty));
}

TEST_F(Cuda, SumsTakeNoMatrixUnit) {
  const TensorView sums = OnGpu(View(y_.data(), DType::f32, 8));
  ExpectError("got block_fma, which sums products",
              [&] { Sum(OnGpu(Matrix(X())), 0, Preset("h100-fp16"), sums); });
}

/// Replaces the CUDA backend, while the object lives, by functions that return `status` (a
/// cudaError_t).
class FailingLibrary {
 public:
  explicit FailingLibrary(int status) {
    status_ = status;
    api_.describe = [](int code) { return code == 2 ? "out of memory: 9 bytes" : "another"; };
    api_.arithmetic = [](const Launch&, const ArithmeticCall&) { return status_; };
    api_.blas = [](const Launch&, const BlasCall& call) {
      *call.error = "cuBLAS: no product today";
      return 0;
    };
    api_.open_stream = [](int, void**) { return 0; };
    api_.close_stream = [](int, void*) { return 0; };
    api_.wait = [](const Launch&) { return 0; };
    api_.order = [](const Launch&, void*) { return 0; };
    api_.allocate = [](const Launch&, MemoryKind, std::int64_t, void**) { return status_; };
    before_ = SetBackend(Device::cuda, &api_);
  }
  ~FailingLibrary() { SetBackend(Device::cuda, before_); }
  FailingLibrary(const FailingLibrary&) = delete;
  FailingLibrary& operator=(const FailingLibrary&) = delete;

 private:
  static inline int status_ = 0;
  Backend api_{.name = "cuda"};
  const Backend* before_;
};

TEST_F(Cuda, StatusesAreErrors) {
  CheckAtOnce(false);
  const auto add = [&] { Add(OnGpu(X()), OnGpu(X()), kFp32, {}, OnGpu(Y())); };
  const auto error_of = [&](int status) -> std::string {
    const FailingLibrary library(status);
    try {
      add();
    } catch (const NoDeviceMemory& error) {
      return std::string("memory: ") + error.what();
    } catch (const MachineError& error) {
      return std::string("machine: ") + error.what();
    }
    return "none";
  };
  EXPECT_EQ(error_of(0), "none");
  EXPECT_EQ(error_of(1), "machine: CUDA: another");  // cudaErrorInvalidValue
  EXPECT_EQ(error_of(2), "memory: CUDA out of memory: 9 bytes");
  for (const int status : {3, 700, 999}) {
    EXPECT_EQ(error_of(status), "machine: CUDA: another") << status;
  }
}

/// If cuBLAS reports an error, the user gets cuBLAS's error text. This holds even if the CUDA
/// backend's function returns status 0 (success).
TEST_F(Cuda, ErrorsOfCublasAreErrors) {
  const FailingLibrary library(0);
  const TensorView x = OnGpu(Matrix(X()));
  ExpectError<MachineError>("cuBLAS: no product today",
                            [&] { GemmByBlas(x, x, {}, OnGpu(Matrix(Y()))); });
}

/// If a reduction over ranks cannot allocate GPU memory, its error differs from the errors of other
/// operations.
TEST_F(Cuda, NoMemoryForAReductionIsAnErrorOfItsOwn) {
  Reduce spec;
  spec.average = true;
  spec.divide = Divide::before;
  Communicator comm(std::move(LocalTransports(1)[0]), {});
  const FailingLibrary library(2);
  const std::vector<TensorView> x = {OnGpu(X())};
  const std::vector<TensorView> y = {OnGpu(Y())};
  ExpectError<NoDeviceMemory>("CUDA out of memory: 9 bytes", [&] { comm.AllReduce(x, y, spec); });
}

TEST_F(Cuda, AMissingGpuIsTheMachinesError) {
  if (testing::Found::Of("cuda").get() != nullptr) GTEST_SKIP() << "there is a GPU";
  for (int turn = 0; turn < 2; ++turn) {  // a second call says the same
    ExpectError<MachineError>("CUDA", [&] { Cast(OnGpu(X()), format_, {}, OnGpu(Y())); });
    ExpectError<MachineError>("CUDA", [&] { Encode(OnGpu(X()), format_, {}, OnGpu(Codes())); });
    ExpectError<MachineError>("CUDA", [&] { Decode(OnGpu(Codes()), format_, OnGpu(Y())); });
    const TensorView x = OnGpu(Matrix(X()));
    const TensorView y = OnGpu(Matrix(Y()));
    ExpectError<MachineError>("CUDA", [&] { Gemm(x, x, {}, y); });
    ExpectError<MachineError>("CUDA", [&] { Gemm(x, x, Preset("h100-fp16"), y); });
    ExpectError<MachineError>("CUDA", [&] { GemmByBlas(x, x, {}, y); });
  }
}

}  // namespace
}  // namespace cpd
