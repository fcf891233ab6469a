// SPDX-License-Identifier: Apache-2.0
//
// Tests that a layer of more than 2^31 values passes through a codec without an index overflow. The
// test needs 20 GiB of memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/stream.h"

namespace cpd {
namespace {

constexpr std::int64_t kValues = (std::int64_t{1} << 31) + 5;
constexpr std::int64_t kNeeded = std::int64_t{20} << 30;

std::int64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    std::int64_t kibibytes = 0;
    file >> kibibytes;
    std::getline(file, unit);
    if (name == "MemAvailable:") return kibibytes << 10;
  }
  return 0;
}

/// Fills x with values whose period has no common factor with the bucket size or with powers of
/// two, so an index error changes the values.
void Fill(std::vector<float>& x) {
  constexpr std::size_t kPeriod = 1'000'003;
  for (std::size_t i = 0; i < kPeriod; ++i) {
    x[i] = static_cast<float>(static_cast<int>(i * 2654435761U % 2001) - 1000) / 256.0F;
  }
  for (std::size_t i = kPeriod; i < x.size(); i += kPeriod) {
    std::copy_n(x.begin(), std::min(kPeriod, x.size() - i),
                x.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

TEST(HugeStream, MoreThanTwoToThe31Values) {
  if (AvailableBytes() < kNeeded) GTEST_SKIP() << "needs 20 GiB of memory";
  const SharedCodec codec = MakeCodec("qsgd bits=4 bucket=512");
  std::vector<float> x(kValues);
  Fill(x);
  const DecodedStream decoded =
      DecodeStream(EncodeStream(codec, nullptr, {.key = {.stream = 9}}, x));
  ASSERT_EQ(decoded.info.count, kValues);
  std::vector<float> expected(std::size_t{1} << 20);
  const auto step = static_cast<std::int64_t>(expected.size());
  for (std::int64_t begin = 0; begin < kValues; begin += step) {
    const std::int64_t n = std::min(step, kValues - begin);
    const Piece piece{.begin = begin, .n = n, .key = {.stream = 9}, .size = kValues};
    codec->Round(piece, nullptr, x.data() + begin, expected.data());
    ASSERT_EQ(std::memcmp(expected.data(), decoded.values.data() + begin,
                          sizeof(float) * static_cast<std::size_t>(n)),
              0)
        << "from value " << begin << " on";
  }
}

}  // namespace
}  // namespace cpd
