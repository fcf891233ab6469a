// SPDX-License-Identifier: Apache-2.0
//
// Tests how the blocks of a part (the values that travel in one message) are stored in the message.
// Some codecs have blocks of a fixed size, others have blocks that vary in size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpd/comm/engine/coded.h"
#include "cpd/comm/errors.h"
#include "cpd/compress/packed.h"
#include "tests/testing/run_length_codec.h"

namespace cpd {
namespace {

using testing::RunLength;

Part part_of_three() {
  Part part;
  part.Add({0, 100, 5});
  part.Add({2, 0, 9000});
  part.Add({3, 7, 1});
  return part;
}

float value_at(int plane, std::int64_t position) {
  return static_cast<float>((position / 3 + plane) % 8);
}

/// Returns the codecs of the parts of a running sum ("planes"), one for each plane. All layers use
/// the same codec for a plane.
Codecs of(const std::vector<SharedCodec>& planes) {
  Codecs codecs(std::span<const SharedCodec>(planes).first(1));
  for (const SharedCodec& plane : planes) codecs.Add({&plane, 1});
  return codecs;
}

/// Returns a message with the values of a part (ranges of layers), once for each plane (stored
/// partial sum) of the running sums. The value of a plane at a position is value_at(plane,
/// position).
Message written(const Part& part, const Codecs& planes) {
  Message message(HostMemory(), MostBytes(part, planes));
  message.Resize(MostBytes(part, planes));
  CodedPart coded = CodedPart::Write(part, planes, message);
  std::vector<Block> blocks = BlocksOf(part, planes);
  std::ranges::reverse(blocks);  // in any order
  for (const Block& block : blocks) {
    for (int q = 0; q < coded.planes(); ++q) {
      std::vector<float> values(static_cast<std::size_t>(block.n));
      for (std::int64_t i = 0; i < block.n; ++i) {
        values[static_cast<std::size_t>(i)] = value_at(q, block.position + i);
      }
      coded.Store(q, block, values.data());
    }
  }
  coded.End(message);
  return message;
}

void expect_read(const Part& part, const Codecs& planes, const Message& message) {
  const CodedPart coded = CodedPart::Read(part, planes, &message);
  for (const Block& block : BlocksOf(part, planes)) {
    for (int q = 0; q < coded.planes(); ++q) {
      std::vector<float> values(static_cast<std::size_t>(block.n));
      coded.Load(q, block, values.data());
      for (std::int64_t i = 0; i < block.n; ++i) {
        ASSERT_EQ(values[static_cast<std::size_t>(i)], value_at(q, block.position + i))
            << "plane " << q << ", position " << block.position + i;
      }
    }
  }
}

TEST(CodedPart, BlocksCoverThePart) {
  const std::vector<Block> blocks =
      BlocksOf(part_of_three(), of({std::make_shared<Packed>(kFp32)}));
  ASSERT_EQ(blocks.size(), 5U);
  std::int64_t position = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    EXPECT_EQ(blocks[b].index, b);
    EXPECT_EQ(blocks[b].position, position);
    position += blocks[b].n;
  }
  EXPECT_EQ(position, 9006);
  EXPECT_EQ(blocks[2].begin, 4096);
  EXPECT_EQ(blocks[3].n, 9000 - 8192);
}

TEST(CodedPart, FixedSizesAreThePacked) {
  const Part part = part_of_three();
  const Codecs planes = of({std::make_shared<Packed>(ParseFormat("e4m3")),
                            std::make_shared<Packed>(ParseFormat("e6m4"))});
  EXPECT_TRUE(planes.is_fixed());
  EXPECT_EQ(MostBytes(part, planes), part.Bytes(8) + part.Bytes(11));
  const Message message = written(part, planes);
  EXPECT_EQ(message.bytes(), MostBytes(part, planes));
  expect_read(part, planes, message);
}

TEST(CodedPart, OtherSizesAreAsShortAsTheyAre) {
  const Part part = part_of_three();
  for (const Codecs& planes : {of({std::make_shared<RunLength>(ParseFormat("e4m3"))}),
                               of({std::make_shared<RunLength>(ParseFormat("fp32")),
                                   std::make_shared<Packed>(ParseFormat("e4m3"))})}) {
    EXPECT_FALSE(planes.is_fixed());
    const Message message = written(part, planes);
    EXPECT_LT(message.bytes(), MostBytes(part, planes));
    expect_read(part, planes, message);
  }
}

TEST(CodedPart, AMessageThatIsNotThere) {
  const Codecs planes = of({std::make_shared<RunLength>(kFp32)});
  EXPECT_FALSE(CodedPart::Read(part_of_three(), planes, nullptr).is_there());
  EXPECT_EQ(MostBytes(Part{}, planes), 0);
}

/// Reads the whole message. Reading must give values, or throw Corrupt with a text that names the
/// sending rank. Adds the number of throws to `corrupt`.
void read_or_corrupt(const Part& part, const Codecs& planes, Message& message, int& corrupt) {
  message.SetSource(6);
  try {
    const CodedPart coded = CodedPart::Read(part, planes, &message);
    std::vector<float> values(static_cast<std::size_t>(planes.block(0)));
    for (const Block& block : BlocksOf(part, planes)) coded.Load(0, block, values.data());
  } catch (const Corrupt& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("a message from rank 6 is damaged: "))
        << error.what();
    ++corrupt;
  }
}

TEST(CodedPart, DamageIsCorrupt) {
  Part part;
  part.Add({0, 0, 30});
  part.Add({1, 0, 4100});
  const Codecs planes = of({std::make_shared<RunLength>(ParseFormat("e4m3"))});
  const Message whole = written(part, planes);
  const auto copy = [&](std::int64_t bytes) {
    Message message(HostMemory(), bytes);
    message.Resize(bytes);
    std::memcpy(message.payload(), whole.payload(), static_cast<std::size_t>(bytes));
    return message;
  };
  int corrupt = 0;
  for (std::int64_t bytes = 0; bytes < whole.bytes(); ++bytes) {
    Message message = copy(bytes);
    const int before = corrupt;
    read_or_corrupt(part, planes, message, corrupt);
    EXPECT_EQ(corrupt, before + 1) << "of " << bytes << " bytes";
  }
  for (std::int64_t bit = 0; bit < 8 * std::min<std::int64_t>(whole.bytes(), 200); ++bit) {
    Message message = copy(whole.bytes());
    message.payload()[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    const int before = corrupt;
    read_or_corrupt(part, planes, message, corrupt);
    const bool in_a_size = bit / 8 < 12;
    EXPECT_TRUE(!in_a_size || corrupt == before + 1) << "bit " << bit;
  }
}

}  // namespace
}  // namespace cpd
