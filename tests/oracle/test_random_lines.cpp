// SPDX-License-Identifier: Apache-2.0
//
// Tests that the random words equal NumPy's, and that a leap by n words equals n single steps.
// tests/python/hardware/test_vectors.py tests the random test vectors, which take these words.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cpd/oracle/random_lines.h"

namespace cpd {
namespace {

RandomWords::State whole(std::uint64_t high, std::uint64_t low) {
  return RandomWords::State{high} << 64 | low;
}

/// Returns the state of numpy.random.PCG64(0). NumPy's random_raw returns the words that this state
/// generates.
RandomWords numpys() {
  return {whole(0x1AA1B5345996452D, 0x09585EB7A69561E3),
          whole(0x418DDADB3AF71A82, 0x588133BC447873A9)};
}

TEST(RandomWords, AreNumpys) {
  RandomWords words = numpys();
  const RandomWords::Leap one = words.leap(1);
  for (const std::uint64_t expected :
       {0xA30FEBCFD9C2825Fu, 0x4510BDF882D9D721u, 0x0A7D3DA94ECDE8B8u, 0x043B27B61342F01Du}) {
    words = words.moved(one);
    EXPECT_EQ(words.word(), expected);
  }
  const std::uint64_t far = 1'000'000'000'000'001;
  EXPECT_EQ(numpys().moved(numpys().leap(far)).word(), 0x351B53E27EC532E7);
}

TEST(RandomWords, ALeapIsSoManySteps) {
  const RandomWords start = numpys();
  RandomWords each = start;
  for (std::uint64_t count = 0; count < 1000; ++count) {
    EXPECT_EQ(start.moved(start.leap(count)).word(), each.word()) << count;
    each = each.moved(start.leap(1));
  }
  const RandomWords far = start.moved(start.leap(std::uint64_t{3} << 60));
  const RandomWords::Leap back = start.leap(~std::uint64_t{0} - (std::uint64_t{3} << 60));
  EXPECT_EQ(far.moved(back).word(), start.moved(start.leap(~std::uint64_t{0})).word());
}

}  // namespace
}  // namespace cpd
