// SPDX-License-Identifier: Apache-2.0
//
// The simulated device is a device of its own: neither the CPU's operations nor another device's
// work on its memory and streams.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "cpd/ops/cast.h"
#include "cpd/spec/error.h"
#include "tests/testing/cuda_memory.h"

namespace cpd {
namespace {

class Sim : public testing::GpuTest {
 protected:
  void SetUp() override { SetUpOn("sim"); }

  std::vector<float> x_ = {1.1F, 2.3F, 3.7F};
};

TEST_F(Sim, HasANameAndANumber) {
  const testing::OnGpuView x(driver(), View(x_));
  EXPECT_EQ(NameOf(x.view()), "sim:0");
  EXPECT_GT(x.view().device, Device::cuda);
  const auto number = [](Device added) { return static_cast<int>(added); };
  try {
    for (int next = number(kind()) + 1; next <= 8; ++next) {
      EXPECT_EQ(number(AddBackend(BackendOf(kind()))), next);
    }
    ADD_FAILURE() << "there is always another number";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "there are at most 8 kinds of device");
  }
}

TEST(Kinds, OfNoBackendAreRefused) {
  TensorView x;
  x.device = static_cast<Device>(9);
  try {
    static_cast<void>(NameOf(x));
    ADD_FAILURE() << "another device's backend has the number";
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "no backend was added for kind of device 9");
  }
}

TEST(Kinds, OfOtherHeadersAreRefused) {
  Backend older{};
  older.name = "older";
  try {
    AddBackend(older);
    ADD_FAILURE() << "added a table of another size";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "older was compiled with other headers of CPD");
  }
}

TEST(Kinds, WithoutAnOperationAreRefused) {
  Backend lacking = BackendOf(Device::cpu);
  lacking.name = "lacking";
  lacking.count_top_k = nullptr;
  try {
    AddBackend(lacking);
    ADD_FAILURE() << "added a table with a hole";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "lacking has no count_top_k");
  }
}

/// Replaces the backend of the simulated device, and of the CPU, until the next call.
TEST_F(Sim, IsReplacedForTests) {
  Backend other = BackendOf(kind());
  other.name = "other";
  const Backend& own = BackendOf(kind());
  EXPECT_EQ(SetBackend(kind(), &other), &own);
  EXPECT_EQ(&BackendOf(kind()), &other);
  try {
    SetBackend(kind(), nullptr);
    ADD_FAILURE() << "a kind that was added lost its backend";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "a kind of device that was added has no other backend than that");
  }
  EXPECT_EQ(SetBackend(kind(), &own), &other);
  EXPECT_EQ(&BackendOf(kind()), &own);
  const Backend& cpu = BackendOf(Device::cpu);
  EXPECT_EQ(SetBackend(Device::cpu, &other), nullptr);
  EXPECT_EQ(SetBackend(Device::cpu, nullptr), &other);
  EXPECT_EQ(&BackendOf(Device::cpu), &cpu);
}

TEST_F(Sim, HasItsOwnStreams) {
  const testing::OnGpuView x(driver(), View(x_));
  TensorView other = x.view();
  other.stream = &x_;
  try {
    Cast(other, ParseFormat("e4m3"), {}, other);
    ADD_FAILURE() << "took another device's stream";
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "SIM: no stream of this device");
  }
}

using SimDeathTest = Sim;

/// The CPU would read the device's memory.
TEST_F(SimDeathTest, HasMemoryThatTheCpuCannotTouch) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const testing::OnGpuView x(driver(), View(x_));
  TensorView on_cpu = x.view();
  on_cpu.device = Device::cpu;
  EXPECT_DEATH(Cast(on_cpu, ParseFormat("e4m3"), {}, View(x_)), "touched by the host");
}

}  // namespace
}  // namespace cpd
