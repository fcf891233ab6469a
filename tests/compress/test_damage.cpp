// SPDX-License-Identifier: Apache-2.0
//
// Every bit flip and every length of many valid encodings, of every codec: a decoder gives values
// or DamagedBytes, and reads nothing else, which the sanitizers see; a stream's checksum finds
// each. test_damage_exhaustive.cpp has more of them.
#include "tests/testing/damage.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

TEST(Damage, EveryBitFlipAndTruncation) {
  const int layers = testing::kEverything ? 150 : testing::kSanitized ? 60 : 40;
  for (const std::string& text : testing::codec_texts()) testing::damage_encodings(text, layers);
  for (const std::string& text : testing::more_codec_texts()) {
    testing::damage_encodings(text, layers / 4);
  }
}

TEST(Damage, StreamsFindIt) {
  for (const std::string& text : testing::codec_texts())
    testing::damage_streams(text, testing::kEverything ? 30 : 10);
}

}  // namespace
}  // namespace cpd
