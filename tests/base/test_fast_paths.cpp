// SPDX-License-Identifier: Apache-2.0
//
// Tests the texts that switch fast paths off (CPD_FAST), and the names of the paths.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cpd/base/fast_paths.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

std::string error_of(const char* text) {
  try {
    ParseFastPaths(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FastPaths, EveryPathHasANameOfItsOwnThatSwitchesItAloneOff) {
  std::set<std::string> names;
  for (int i = 1; i < kFastPaths; ++i) {
    const std::string name = kFastPathNames[i];
    EXPECT_TRUE(names.insert(name).second) << name;
    const FastPaths paths = ParseFastPaths("-" + name);
    for (int j = 1; j < kFastPaths; ++j) {
      EXPECT_EQ(paths.has(static_cast<FastPath>(j)), i != j) << name;
      EXPECT_TRUE(ParseFastPaths("").has(static_cast<FastPath>(j)));
      EXPECT_TRUE(ParseFastPaths("all").has(static_cast<FastPath>(j)));
      EXPECT_FALSE(ParseFastPaths("none").has(static_cast<FastPath>(j)));
    }
  }
  ASSERT_GT(names.size(), 1U);
}

TEST(FastPaths, SeveralNamesAreSwitchedOff) {
  const FastPaths paths = ParseFastPaths("-veltkamp,-stochastic");
  EXPECT_FALSE(paths.has(FastPath::veltkamp));
  EXPECT_FALSE(paths.has(FastPath::stochastic));
  EXPECT_TRUE(paths.has(FastPath::binary32));
  EXPECT_EQ(paths, ParseFastPaths("-stochastic,-veltkamp"));
}

TEST(FastPaths, OtherTextsAreErrorsThatSayWhatIsAllowed) {
  const std::string unknown = error_of("-veltkmap");
  const std::string expected =
      "CPD_FAST: no fast path is called 'veltkmap'; did you mean 'veltkamp'? (paths: binary32, ";
  EXPECT_EQ(unknown.rfind(expected, 0), 0U) << unknown;
  for (const char* text : {"veltkamp", "-veltkamp,", ",", "+veltkamp", "- veltkamp"}) {
    EXPECT_EQ(error_of(text).rfind("CPD_FAST", 0), 0U) << text << ": " << error_of(text);
  }
  EXPECT_EQ(error_of("veltkamp"),
            "CPD_FAST must be 'all', 'none' or names to switch off, as in '-veltkamp', got "
            "'veltkamp'");
}

}  // namespace
}  // namespace cpd
