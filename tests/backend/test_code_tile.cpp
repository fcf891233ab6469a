// SPDX-License-Identifier: Apache-2.0
//
// Bytes between global memory and a tile's, at any address. This program traps where a word is read
// or written at an address that is not its own, as a GPU does (tests/CMakeLists.txt).
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "kernels/cuda/code_tile.h"

namespace cpd::cuda {
namespace {

constexpr int kRoom = 64;
constexpr std::uint8_t kGap = 0xA5;

struct Memory {
  alignas(16) std::array<std::uint8_t, kRoom> bytes{};
};

TEST(CodeTile, CopiesBytesAtAnyAddress) {
  Memory from;
  for (int i = 0; i < kRoom; ++i) from.bytes.at(i) = static_cast<std::uint8_t>(7 * i + 1);
  for (int source = 0; source < 8; ++source) {
    for (int target = 0; target < 8; ++target) {
      for (int count = 0; count <= kRoom - 8; ++count) {
        Memory to;
        to.bytes.fill(kGap);
        for (int thread = 0; thread < kThreads; ++thread) {
          copy_bytes(to.bytes.data() + target, from.bytes.data() + source, count, thread);
        }
        for (int i = 0; i < kRoom; ++i) {
          const bool is_copied = i >= target && i < target + count;
          ASSERT_EQ(to.bytes.at(i), is_copied ? from.bytes.at(i - target + source) : kGap)
              << "from " << source << " to " << target << ", " << count << " bytes, at " << i;
        }
      }
    }
  }
}

TEST(CodeTile, WordsAtAnyAddress) {
  Memory memory;
  for (int at = 0; at < 8; ++at) {
    memory.bytes.fill(kGap);
    store_word(memory.bytes.data() + at, 0x87654321U);
    EXPECT_EQ(memory.bytes.at(at), 0x21);
    EXPECT_EQ(memory.bytes.at(at + 3), 0x87);
    EXPECT_EQ(memory.bytes.at(at + 4), kGap);
    EXPECT_EQ(load_word(memory.bytes.data() + at), 0x87654321U);
  }
}

}  // namespace
}  // namespace cpd::cuda
