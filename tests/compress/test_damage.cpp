// SPDX-License-Identifier: Apache-2.0
//
// Every bit flip and every truncation of many valid encodings, of every codec: a decoder gives
// values or DamagedBytes, and reads nothing else, which the sanitizers see; a stream's checksum
// finds each. test_damage_exhaustive.cpp has more of them.
#include "tests/testing/damage.h"

namespace cpd {
namespace {

TEST(Damage, EveryBitFlipAndTruncation) {
  for (const std::string& text : testing::codec_texts()) testing::damage_encodings(text, 150);
}

TEST(Damage, StreamsFindIt) {
  for (const std::string& text : testing::codec_texts()) testing::damage_streams(text, 30);
}

}  // namespace
}  // namespace cpd
