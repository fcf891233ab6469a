// SPDX-License-Identifier: Apache-2.0
//
// Tests the random integers: the generator is Philox4x32-10 as in Random123, and the documented
// rule assigns its output to elements.
#include <gtest/gtest.h>

#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/run.h"

#ifdef CPD_TEST_RANDOM123
#include <Random123/philox.h>
#endif

namespace cpd {
namespace {

RoundingOptions stochastic(int random_bits) {
  return {.mode = Rounding::stochastic, .random_bits = random_bits};
}

using Block = std::array<std::uint32_t, 4>;

// Returns the random integer of element i, given the block function `philox`. A block has four
// 32-bit words, and a word holds s integers. Element i takes block 16 * (i / (64 s)) + i mod 16,
// its word (i / 16) mod 4, and part (i / 64) mod s of that word.
template <class Philox>
std::uint32_t integer_of_element(const Philox& philox, int random_bits, const RandomKey& key,
                                 std::uint64_t i) {
  const std::uint64_t s = random_bits > 16 ? 1 : random_bits > 8 ? 2 : 4;
  const std::uint64_t counter = 16 * (i / (64 * s)) + i % 16;
  const Block words = philox(
      Block{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
            static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)},
      std::array<std::uint32_t, 2>{static_cast<std::uint32_t>(key.seed),
                                   static_cast<std::uint32_t>(key.seed >> 32)});
  const std::uint64_t part = (i / 64) % s;
  return (words[(i / 16) % 4] >> (part * (32 / s))) & ((1u << random_bits) - 1);
}

#ifdef CPD_TEST_RANDOM123

Block random123(const Block& counter, const std::array<std::uint32_t, 2>& key) {
  const r123::Philox4x32::ctr_type c = {{counter[0], counter[1], counter[2], counter[3]}};
  const r123::Philox4x32::key_type k = {{key[0], key[1]}};
  const auto r = r123::Philox4x32()(c, k);
  return {r[0], r[1], r[2], r[3]};
}

// Compares with the known-answer vectors that Random123 publishes for philox4x32 with 10 rounds.
TEST(Philox, Random123IsTheGeneratorThatIsMeant) {
  EXPECT_EQ(random123({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(random123({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(random123({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryBackendDealsOutRandom123) {
  const std::array<std::array<std::uint64_t, 2>, 5> kSeedsAndStreams = {
      {{0, 0}, {1, 0}, {0, 1}, {0x299f31d0a4093822, 0x0370734413198a2e}, {~0ull, ~0ull}}};
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (int random_bits = 1; random_bits <= 24; ++random_bits) {
      for (const auto& [seed, stream] : kSeedsAndStreams) {
        const RandomKey key{seed, stream};
        for (const std::size_t n : {1u, 15u, 16u, 17u, 255u, 256u, 257u, 1111u}) {
          std::vector<std::uint32_t> expected(n);
          for (std::size_t i = 0; i < n; ++i) {
            expected[i] = integer_of_element(random123, random_bits, key, i);
          }
          const auto got = testing::run_random_integers(stochastic(random_bits), n, 0, key);
          EXPECT_TRUE(testing::bits_equal(std::span<const std::uint32_t>(expected),
                                          std::span<const std::uint32_t>(got)))
              << backend << ", N " << random_bits << ", seed " << seed << ", stream " << stream;
        }
      }
    }
  }
}

// The counter of the random generator has 64 bits. An element's random integer does not depend on
// the element at which a call begins.
TEST(Philox, LargeIndices) {
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const int random_bits : {3, 8, 9, 16, 17, 24}) {
      constexpr RandomKey kNumbers{42, 7};
      for (const std::uint64_t first :
           {std::uint64_t{256}, std::uint64_t{1} << 31, (std::uint64_t{1} << 32) - 256,
            std::uint64_t{1} << 34, (std::uint64_t{1} << 34) - 256, (std::uint64_t{1} << 36) - 512,
            (std::uint64_t{1} << 36) - 256, std::uint64_t{1} << 40}) {
        std::vector<std::uint32_t> expected(600);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] = integer_of_element(random123, random_bits, kNumbers, first + i);
        }
        const auto got =
            testing::run_random_integers(stochastic(random_bits), expected.size(), first, kNumbers);
        EXPECT_TRUE(testing::bits_equal(std::span<const std::uint32_t>(expected),
                                        std::span<const std::uint32_t>(got)))
            << backend << ", N " << random_bits << ", first " << first;
      }
    }
  }
}

#else

TEST(Philox, EveryBackendDealsOutRandom123) {
  GTEST_SKIP() << "built without Random123 (Debian: librandom123-dev)";
}

#endif

// Compares with the vector that Random123 publishes for a zero key and a zero counter. Word w of
// counter 0 belongs to element 16 w.
TEST(Philox, KnownAnswer) {
  constexpr Block kZero = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    const auto r = testing::run_random_integers(stochastic(24), 64, 0, {});
    for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(r[16 * w], kZero[w] & 0xFFFFFF) << backend;
    const auto bytes = testing::run_random_integers(stochastic(8), 256, 0, {});
    for (std::size_t part = 0; part < 4; ++part) {
      EXPECT_EQ(bytes[64 * part], (kZero[0] >> (8 * part)) & 0xFF) << backend;
    }
  }
}

// A stochastic cast uses exactly the integers that random_integers returns.
TEST(Philox, CastUsesThem) {
  const Format format = ParseFormat("e4m3");
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const int random_bits : {1, 5, 8, 11, 16, 20, 24}) {
      const RoundingOptions o = stochastic(random_bits);
      constexpr RandomKey kNumbers{0xDEADBEEFCAFEull, 3};
      std::vector<float> x(3001);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1.0f + 1e-4f * static_cast<float>(i);
      const auto random = testing::run_random_integers(o, x.size(), 0, kNumbers);
      const auto expected = testing::oracle_cast(x, format, o, &random);
      EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected),
                                      testing::run_cast(x, format, o, nullptr, kNumbers), x))
          << backend << ", N " << random_bits;
      EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected),
                                      testing::run_cast(x, format, o, &random), x))
          << backend << ", N " << random_bits << ", integers given";
    }
  }
}

TEST(Philox, RefusesBadCounts) {
  std::vector<std::uint32_t> out(8);
  for (const int random_bits : {-1, 0, 25, 32}) {
    EXPECT_THROW(RandomIntegers(stochastic(random_bits), 0, testing::view_of(out)), Error);
  }
}

}  // namespace
}  // namespace cpd
