// SPDX-License-Identifier: Apache-2.0
//
// Tests the NCCL transport with the real NCCL library: one process, and two processes that share a
// GPU. spawn.py starts the processes. It gives each a different host id, because NCCL does not let
// two ranks of one host share a GPU.
#include <gtest/gtest.h>

#include "tests/testing/cuda_memory.h"
#include "tests/testing/nccl_world.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {
namespace {

class NcclOnGpu : public GpuTest {
 protected:
  [[nodiscard]] MessageMemory memory() const {
    const Accelerator* driver = &this->driver();
    return {[driver](std::int64_t bytes) {
              return std::shared_ptr<void>(driver->Allocate(static_cast<std::size_t>(bytes)),
                                           [driver](void* p) { driver->Free(p); });
            },
            [driver](void* to, const void* from, std::size_t n) { driver->ToDevice(to, from, n); },
            [driver](void* to, const void* from, std::size_t n) { driver->ToHost(to, from, n); }};
  }
};

/// The NCCL library loads and creates group ids, even without a GPU.
TEST(NcclLibrary, NamesGroups) {
  try {
    EXPECT_NE(MakeNcclId(), MakeNcclId());
  } catch (const MachineError& error) {
    GTEST_SKIP() << error.what();
  }
}

TEST_F(NcclOnGpu, Messages) {
  const auto transport = open_nccl("messages", 0);
  EXPECT_EQ(transport->size(), nccl_size());
  EXPECT_EQ(transport->memory(), Device::cuda);
  const TransportEnd end{*transport, memory()};
  check_sizes(end);
  check_some_peers(end);
  check_many_tags(end);
  check_equal_tags(end);
  check_refusals(end);
}

TEST_F(NcclOnGpu, SilentPeerThenNewGroup) {
  if (nccl_size() < 2) return;
  auto transport = open_nccl("silent", 0);
  Messages in_vain({*transport, memory()}, 1);
  in_vain.Receive(1 - nccl_rank(), 5000);
  in_vain.Start(1);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(in_vain.transfer().Poll());
  in_vain.Abandon();
  transport.reset();
  const auto fresh = open_nccl("fresh", 0);
  check_equal_tags({*fresh, memory()});
}

}  // namespace
}  // namespace cpd::testing
