// SPDX-License-Identifier: Apache-2.0
//
// Tests the texts of Hadamard transforms: they are printed and parsed back, and wrong texts are
// refused.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cpd/spec/error.h"
#include "tests/testing/hadamard.h"

namespace cpd {
namespace {

TEST(HadamardText, Canonical) {
  EXPECT_EQ(ToString(Hadamard{}), "hadamard16");
  EXPECT_EQ(ToString(Hadamard{16, Hadamard::kTe, true}), "hadamard16:te:bf16");
  EXPECT_EQ(ToString(Hadamard{32, {0xD7E8U}}), "hadamard32:signs=0xd7e8");
  EXPECT_EQ(ToString(Hadamard{128, {0, 0, 1, 0x80000000U}, true}),
            "hadamard128:signs=0x80000000000000010000000000000000:bf16");
}

TEST(HadamardText, ParsesBack) {
  for (const Hadamard& h : testing::all_transforms()) {
    EXPECT_EQ(ParseHadamard(ToString(h)), h) << ToString(h);
  }
  EXPECT_EQ(ParseHadamard("hadamard16:signs=0xD7E8"), (Hadamard{16, Hadamard::kTe}));
  EXPECT_EQ(ParseHadamard("hadamard32:signs=0x0000000000ff"), (Hadamard{32, {0xFFU}}));
  EXPECT_EQ(ParseHadamard("hadamard16:te"), (Hadamard{16, Hadamard::kTe}));
  EXPECT_EQ(ParseHadamard("hadamard8:bf16"), (Hadamard{8, {}, true}));
}

TEST(HadamardText, TransformerEnginesSigns) {
  const std::string signs = "+++-+------+-+--";
  const Hadamard te{16, Hadamard::kTe};
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(te.negates(i), signs[static_cast<std::size_t>(i)] == '-') << i;
  }
}

TEST(HadamardText, Refused) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"", "text is hadamardN"},
      {"hadamard", "text is hadamardN"},
      {"hadamard16 ", "text is hadamardN"},
      {"hadamard16:", "text is hadamardN"},
      {"hadamard16:bf16:te", "text is hadamardN"},
      {"hadamard16:te:te", "text is hadamardN"},
      {"hadamard16:bf16:bf16", "text is hadamardN"},
      {"hadamard16:signs=", "text is hadamardN"},
      {"hadamard99999999999", "text is hadamardN"},
      {"hadamard12", "size must be a power of two, 2…128, got 12"},
      {"hadamard0", "got 0"},
      {"hadamard-16", "got -16"},
      {"hadamard1", "got 1"},
      {"hadamard256", "got 256"},
      {"hadamard32:te", "the signs te are for 16 inputs, got a Hadamard transform of size 32"},
      {"hadamard16:signs=0x1ffff", "of size 16 has 16 signs, got 0x1ffff"},
      {"hadamard16:signs=12", "te or 0x and at most 32 digits, got '12'"},
      {"hadamard16:signs=0x", "got '0x'"},
      {"hadamard16:signs=0xg", "got '0xg'"},
      {"hadamard128:signs=0x100000000000000000000000000000000", "at most 32 digits"},
  };
  for (const auto& [text, message] : all) {
    try {
      static_cast<void>(ParseHadamard(text));
      ADD_FAILURE() << text << " was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace cpd
