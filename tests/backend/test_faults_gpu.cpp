// SPDX-License-Identifier: Apache-2.0
//
// What only values tell of a call on a GPU: raised by a later call, once, or where calls are
// checked at once by the call itself.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cpd/backend/faults.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "tests/testing/cuda_memory.h"

namespace cpd {
namespace {

using testing::OnGpuView;

constexpr std::array<std::int64_t, 2> kSquare{16, 16};

RoundingOptions Stochastic() {
  RoundingOptions options;
  options.mode = Rounding::stochastic;
  options.random_bits = 3;
  return options;
}

class FaultsGpu : public testing::GpuTest {
 protected:
  /// 256 values of e4m3fn, but for number 37.
  [[nodiscard]] OnGpuView Values(float odd) {
    x_.assign(256, 0.5F);
    x_[37] = odd;
    return {driver(), View(x_.data(), DType::f32, kSquare)};
  }
  /// Expects the error of `call`: its own, or an earlier call's.
  static void ExpectError(const std::string& text, bool earlier,
                          const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "no error: " << text;
    } catch (const Error& error) {
      const std::string found = error.what();
      EXPECT_EQ(found.substr(0, text.size()), text);
      EXPECT_EQ(found.size() > text.size(), earlier) << found;
    }
  }
  /// Runs `call` both ways; `harmless` reads device memory, which waits, and then casts. On a GPU a
  /// part of `call` may already see what an earlier part of it noted.
  void ExpectFault(const std::string& text, const std::function<void()>& call) {
    CheckAtOnce(true);
    ExpectError(text, false, call);
    CheckAtOnce(false);
    const OnGpuView x = Values(0.5F);
    const auto harmless = [&] {
      x.Read();
      Cast(x.view(), ParseFormat("e4m3fn"), {}, x.view());
    };
    const auto both = [&] {
      call();
      harmless();
    };
    harmless();
    ExpectError(text, true, both);
    EXPECT_NO_THROW(harmless()) << text;  // it is raised once
    ExpectError(text, true, both);
    CheckAtOnce(true);
  }

 private:
  std::vector<float> x_;
};

TEST_F(FaultsGpu, OperandsThatAUnitDoesNotTake) {
  const std::vector<float> good(256, 0.5F);
  std::vector<float> out(256);
  const OnGpuView b(driver(), View(good.data(), DType::f32, kSquare));
  const OnGpuView to(driver(), View(out.data(), DType::f32, kSquare));
  std::vector<float> bad = good;
  bad[37] = 0.3F;
  const OnGpuView a(driver(), View(bad.data(), DType::f32, kSquare));
  ExpectFault("a must hold values of e4m3fn, got another at element 37",
              [&] { Gemm(a.view(), b.view(), Preset("h100-fp8"), to.view()); });
}

TEST_F(FaultsGpu, RandomIntegersOutOfRange) {
  const OnGpuView x = Values(0.3F);
  std::vector<float> out(256);
  const OnGpuView to(driver(), View(out.data(), DType::f32, kSquare));
  std::vector<std::uint32_t> integers(256, 7);
  integers[41] = 8;
  const OnGpuView random(driver(), View(integers.data(), DType::u32, kSquare));
  const TensorView given = random.view();
  ExpectFault("random integers must be below 2^random_bits = 8, got a greater one at element 41",
              [&] { Cast(x.view(), ParseFormat("e4m3"), Stochastic(), to.view(), {}, &given); });
}

TEST_F(FaultsGpu, NanWithoutACode) {
  std::vector<float> x(256, 0.5F);
  x[37] = std::numeric_limits<float>::quiet_NaN();
  const OnGpuView from(driver(), View(x.data(), DType::f32, kSquare));
  std::vector<std::uint8_t> codes(128);
  const OnGpuView packed(driver(), View(codes.data(), DType::u8, 128));
  const std::string text = "element 37 is NaN, and e2m1 has no code for NaN";
  ExpectFault(text, [&] { Encode(from.view(), ParseFormat("e2m1"), {}, packed.view()); });
  std::vector<float> apart(512, 0.5F);  // every second one is an element
  apart[74] = x[37];
  TensorView second = View(apart.data(), DType::f32, kSquare);
  second.stride = {32, 2};
  const OnGpuView from_apart(driver(), second);
  ExpectFault(text, [&] { Encode(from_apart.view(), ParseFormat("e2m1"), {}, packed.view()); });
  const std::vector<double> doubles(x.begin(), x.end());
  const OnGpuView from_doubles(driver(), View(doubles.data(), DType::f64, kSquare));
  ExpectFault(text, [&] { Encode(from_doubles.view(), ParseFormat("e2m1"), {}, packed.view()); });
  std::vector<std::uint8_t> scale_codes(16);
  const OnGpuView scales(driver(), View(scale_codes.data(), DType::u8, 16));
  ExpectFault(text, [&] {
    Encode(from.view(), ParseScaled("mxfp4 non_finite=element"), 1, {}, packed.view(),
           scales.view(), nullptr);
  });
}

}  // namespace
}  // namespace cpd
