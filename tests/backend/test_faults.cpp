// SPDX-License-Identifier: Apache-2.0
//
// Tests faults that depend on values, such as a NaN without a code. The CPU throws in the call
// itself. Another device raises the fault once, in a later call, or in the call itself if
// CheckAtOnce(true) is set.
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
#include "tests/testing/devices.h"

namespace cpd {
namespace {

constexpr std::array<std::int64_t, 2> kSquare{16, 16};

/// Returns 256 values, all 0.5 except number 37, which is `odd`.
std::vector<float> ValuesWith(float odd) {
  std::vector<float> x(256, 0.5F);
  x[37] = odd;
  return x;
}

class Faults : public testing::OnDevice {
 protected:
  /// Expects that `call` throws an Error whose text begins with `text`. If `earlier` is true, more
  /// text must follow: a note that an earlier call caused the fault.
  static void ExpectError(const std::string& text, bool earlier,
                          const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "no error: " << text;
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.substr(0, text.size()), text);
      EXPECT_EQ(what.size() > text.size(), earlier) << what;
    }
  }
  /// Returns the value that an error text must name: `value` on the CPU, `elsewhere` on another
  /// device, whose kernels do not report the value.
  [[nodiscard]] std::string Got(const char* value, const char* elsewhere) const {
    return on_host() ? value : elsewhere;
  }
  /// Expects the fault of call(there) both with CheckAtOnce(true) and with CheckAtOnce(false).
  /// `harmless` waits for the device and then casts valid values, so a fault that is still pending
  /// is raised by then. Within `call`, a later operation may already raise the fault of an earlier
  /// operation.
  void ExpectFault(const std::string& text, const std::function<void(testing::Copies&)>& call) {
    const auto bad = [&] {
      testing::Copies there = There();
      call(there);
    };
    CheckAtOnce(true);
    ExpectError(text, false, bad);
    if (on_host()) return;
    CheckAtOnce(false);
    const auto harmless = [&] {
      const std::vector<float> good(256, 0.5F);
      testing::Copies there = There();
      Cast(there(View(good)), ParseFormat("e4m3fn"), {}, there(View(good)));
      there.Read(good.data());
      Cast(there(View(good)), ParseFormat("e4m3fn"), {}, there(View(good)));
    };
    const auto both = [&] {
      bad();
      harmless();
    };
    harmless();
    ExpectError(text, true, both);
    EXPECT_NO_THROW(harmless()) << text;  // it is raised once
    ExpectError(text, true, both);
    CheckAtOnce(true);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, Faults, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

TEST_P(Faults, OperandsThatAUnitDoesNotTake) {
  const std::vector<float> good(256, 0.5F), bad = ValuesWith(0.3F), out(256);
  const auto square = [](const std::vector<float>& x) {
    return View(x.data(), DType::f32, kSquare);
  };
  ExpectFault("a must hold values of e4m3fn, got " + Got("0.300000", "another") + " at element 37",
              [&](testing::Copies& there) {
                Gemm(there(square(bad)), there(square(good)), Preset("h100-fp8"),
                     there(square(out)));
              });
}

TEST_P(Faults, RandomIntegersOutOfRange) {
  const std::vector<float> x = ValuesWith(0.3F), out(256);
  std::vector<std::uint32_t> integers(256, 7);
  integers[41] = 8;
  const TensorView random = View(integers.data(), DType::u32, 256);
  RoundingOptions stochastic;
  stochastic.mode = Rounding::stochastic;
  stochastic.random_bits = 3;
  ExpectFault("random integers must be below 2^random_bits = 8, got " + Got("8", "a greater one") +
                  " at element 41",
              [&](testing::Copies& there) {
                Cast(there(View(x)), ParseFormat("e4m3"), stochastic, there(View(out)), {},
                     there(&random));
              });
}

TEST_P(Faults, NanWithoutACode) {
  const std::string text = "element 37 is NaN, and e2m1 has no code for NaN";
  const std::vector<float> x = ValuesWith(std::numeric_limits<float>::quiet_NaN());
  const std::vector<std::uint8_t> codes(128), scale_codes(16);
  const TensorView packed = View(codes.data(), DType::u8, 128);
  const TensorView scales = View(scale_codes.data(), DType::u8, 16);
  std::vector<float> apart(512, 0.5F);  // every second one is an element
  apart[74] = x[37];
  TensorView second = View(apart.data(), DType::f32, kSquare);
  second.stride = {32, 2};
  const std::vector<double> doubles(x.begin(), x.end());
  for (const TensorView& from : {View(x), second, View(doubles.data(), DType::f64, kSquare)}) {
    ExpectFault(text, [&](testing::Copies& there) {
      Encode(there(from), ParseFormat("e2m1"), {}, there(packed));
    });
  }
  const TensorView square = View(x.data(), DType::f32, kSquare);
  ExpectFault(text, [&](testing::Copies& there) {
    Encode(there(square), ParseScaled("mxfp4 non_finite=element"), 1, {}, there(packed),
           there(scales), nullptr);
  });
}

}  // namespace
}  // namespace cpd
