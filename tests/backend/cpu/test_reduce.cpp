// SPDX-License-Identifier: Apache-2.0
//
// Tests the CPU's reductions of messages in cases that the tests of all-reduces do not reach.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "cpd/backend/registry.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// The arguments and buffers of a reduction call that converts values to codes of a format.
struct Transcoding {
  ReduceSegment segment;
  ReduceCall call;
  std::vector<std::uint8_t> to;
  const std::uint8_t* from;

  Transcoding(const std::vector<float>& values, const Format& format)
      : to(values.size() * 4), from(reinterpret_cast<const std::uint8_t*>(values.data())) {
    segment.size = segment.count = static_cast<std::int64_t>(values.size());
    call.task = ReduceTask::transcode;
    call.from_codes = Codes::values;
    call.to_codes = Codes::result;
    call.codes[static_cast<std::size_t>(Codes::values)] = PlanOf(kFp32);
    call.codes[static_cast<std::size_t>(Codes::result)] = PlanOf(format);
    call.segments = &segment;
    call.segment_count = 1;
    call.from = &from;
    call.to = to.data();
  }
  Transcoding(const Transcoding&) = delete;
  Transcoding& operator=(const Transcoding&) = delete;
};

TEST(CpuReduce, RefusesNanWithoutACode) {
  std::vector<float> values(5000, 1.0F);
  values[4321] = std::numeric_limits<float>::quiet_NaN();
  const Transcoding transcoding(values, ParseFormat("e2m1"));
  try {
    BackendOf(Device::cpu).reduce({}, transcoding.call);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a message's value 4321 is NaN, and its format has no code for NaN");
  }
}

/// While the CPU converts a message, it polls the transport between batches of the message's
/// blocks. It does not poll after the last batch.
TEST(CpuReduce, CallsTheHostBetweenBatches) {
  for (const std::int64_t batches : {1, 2, 3}) {
    const std::vector<float> values(
        static_cast<std::size_t>(batches * 64 * 4096 * MaxThreads() - 5), 1.0F);
    Transcoding transcoding(values, ParseFormat("e4m3"));
    std::int64_t calls = 0;
    transcoding.call.between = [](const void* count) {
      ++*static_cast<std::int64_t*>(const_cast<void*>(count));
    };
    transcoding.call.waiting = &calls;
    BackendOf(Device::cpu).reduce({}, transcoding.call);
    EXPECT_EQ(calls, batches - 1);
  }
}

}  // namespace
}  // namespace cpd
