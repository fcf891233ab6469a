// SPDX-License-Identifier: Apache-2.0
//
// Tests that the simulated device is separate from all others. An operation of the CPU or of
// another device must not be able to use its memory or streams.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/comm/virtual.h"
#include "cpd/compress/codecs.h"
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

/// A test may replace the backend of the simulated device or of the CPU by SetBackend. The
/// replacement lasts until the next call of SetBackend.
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

Reduce SpecOf(SharedCodec wire) {
  Reduce spec;
  spec.format = wire->format();
  spec.accumulator.format = spec.result = kFp32;
  spec.wire = std::move(wire);
  return spec;
}

/// Codecs that store a state for each layer, such as rounding errors. They compute the state with
/// kernels that they queue on the call's stream.
constexpr const char* kStateful[] = {"one_bit", "feedback int4", "top_k 0.1", "top_k 0.1 int4",
                                     "feedback top_k 0.1 feedback=off"};

/// An all-reduce ends without storing its codec's new states. The stream of its tensors is closed
/// while the states still exist. The states must not use that stream.
TEST_F(Sim, StatesDoNotUseTheStreamOfACallThatHasEnded) {
  std::vector<float> x(3000, 1.5F);
  for (const char* text : kStateful) {
    for (const bool observes : {false, true}) {
      SCOPED_TRACE(text);
      const testing::OnGpuView layer(driver(), View(x));
      const testing::SimCounts before = testing::CountsOfSim();
      CodecStates states;
      Reduce spec = SpecOf(MakeCodec(text));
      if (observes && spec.wire->has_scales()) continue;
      spec.aps = observes ? Aps::on : Aps::off;
      TensorOptions options;
      options.states = &states;
      options.commits = false;
      for (const int ranks : {0, 1, 2}) {  // contribute before the call ends
        const Queue stream(kind(), 0);
        TensorView view = layer.view();
        view.stream = stream.stream();
        VirtualReduce reduce(spec, 2, {3000}, options);
        for (int r = 0; r < 2 && observes; ++r) reduce.Observe(0, view);
        for (int r = 0; r < ranks; ++r) {
          reduce.Contribute(0, view);
          reduce.EndRank();
        }
      }
      states.Reset();
      const testing::SimCounts after = testing::CountsOfSim();
      EXPECT_EQ(after.unknown_streams, before.unknown_streams);
      EXPECT_EQ(after.queued, before.queued);
    }
  }
}

/// The simulated device has the same number of memory blocks in use after every rank's
/// contribution.
TEST_F(Sim, VirtualRanksFreeWhatACodecNeeded) {
  constexpr int kRanks = 6;
  std::vector<float> x(3000, 1.5F);
  for (const char* text : kStateful) {
    SCOPED_TRACE(text);
    const testing::OnGpuView layer(driver(), View(x));
    CodecStates states;
    TensorOptions options;
    options.states = &states;
    options.counts_bytes = false;
    for (const std::uint64_t step : {0, 1}) {  // the first allocates residuals
      options.step = step;
      VirtualReduce reduce(SpecOf(MakeCodec(text)), kRanks, {3000}, options);
      std::optional<std::int64_t> blocks;
      for (int r = 0; r < kRanks; ++r) {
        reduce.Contribute(0, layer.view());
        const std::int64_t now = testing::CountsOfSim().queued;
        if (step == 1) {
          EXPECT_EQ(now, blocks.value_or(now)) << "rank " << r;
        }
        blocks = now;
        reduce.EndRank();
      }
    }
  }
}

/// A codec that copies the layer it is given and then throws.
class Throwing final : public Codec {
 public:
  explicit Throwing(float* copy) : copy_(copy) {}
  [[nodiscard]] std::string name() const override { return "throwing"; }
  [[nodiscard]] std::string text() const override { return name(); }
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] KernelSupport kernels() const override { return KernelSupport::round; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t /*before*/) const override {
    return 4 * n;
  }
  std::int64_t EncodeOn(const Queue& /*queue*/, const Piece& /*piece*/, CodecState* /*state*/,
                        const float* /*x*/, std::uint8_t* /*to*/) const override {
    throw Error("not called");
  }
  void DecodeOn(const Queue& /*queue*/, std::span<const std::uint8_t> /*bytes*/, std::int64_t /*n*/,
                int /*shift*/, float /*divisor*/, float* /*y*/,
                std::int64_t /*before*/) const override {
    throw Error("not called");
  }
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* /*state*/, const float* x,
               float* /*y*/, SegmentCounts* /*counts*/) const override {
    FeedbackCall call;
    call.n = piece.n;
    call.x = x;
    call.v = copy_;
    queue.add_residual(call);
    throw Error("a codec's error");
  }

 private:
  float* copy_;
};

/// If a call throws, the tensor's stream still waits for the work that the call has queued.
TEST_F(Sim, TensorsMayChangeAfterACodecsError) {
  std::vector<float> x(3000, 1.5F);
  std::vector<float> copy(x.size());
  const testing::OnGpuView first(driver(), View(x));
  const testing::OnGpuView second(driver(), View(x));
  const testing::OnGpuView there(driver(), View(copy));
  const Queue sums(kind(), 0);
  const Queue other(kind(), 0);
  TensorView on_sums = first.view();
  TensorView on_other = second.view();
  on_sums.stream = sums.stream();
  on_other.stream = other.stream();
  const auto codec = std::make_shared<Throwing>(static_cast<float*>(there.view().data));
  VirtualReduce reduce(SpecOf(codec), 2, {3000, 3000});
  EXPECT_THROW(reduce.Contribute(0, on_sums), Error);
  EXPECT_THROW(reduce.Contribute(1, on_other), Error);
  other.Clear(on_other.data, 4 * on_other.size());
  other.Wait();
  sums.Wait();
  there.Read();
  EXPECT_EQ(copy, x);
}

using SimDeathTest = Sim;

/// Calls Cast on the CPU with the simulated device's memory. The CPU's read of that memory must end
/// the process.
TEST_F(SimDeathTest, HasMemoryThatTheCpuCannotTouch) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const testing::OnGpuView x(driver(), View(x_));
  TensorView on_cpu = x.view();
  on_cpu.device = Device::cpu;
  EXPECT_DEATH(Cast(on_cpu, ParseFormat("e4m3"), {}, View(x_)), "touched by the host");
}

}  // namespace
}  // namespace cpd
