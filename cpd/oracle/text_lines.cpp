// SPDX-License-Identifier: Apache-2.0
#include "cpd/oracle/text_lines.h"

#include <cstring>

#include "cpd/base/parallel.h"

namespace cpd {
namespace {

constexpr std::int64_t kTextAtOnce = 4096;
constexpr char kDigits[] = "0123456789ABCDEF";

std::uint64_t NumberAt(const TextField& field, std::size_t i) {
  const auto at = [&]<class Integer>(Integer) {
    Integer number;
    std::memcpy(&number, static_cast<const char*>(field.numbers) + i * sizeof number,
                sizeof number);
    return std::uint64_t{number};
  };
  switch (field.bytes) {
    case 1:
      return at(std::uint8_t{});
    case 2:
      return at(std::uint16_t{});
    case 4:
      return at(std::uint32_t{});
    default:
      return at(std::uint64_t{});
  }
}

/// Writes the digits of line i's field, the last one first.
void PutDigits(const TextField& field, std::size_t i, char* out) {
  __extension__ using Bits = unsigned __int128;
  const auto count = static_cast<std::size_t>(field.count);
  char* at = out + field.digits();
  Bits bits = 0;
  int have = 0;
  for (std::size_t k = 0; k < count; ++k) {
    bits |= Bits{NumberAt(field, i * count + k)} << have;
    have += field.width;
    for (; have >= 4; have -= 4) {
      *--at = kDigits[static_cast<std::size_t>(bits & 15)];
      bits >>= 4;
    }
  }
  if (have > 0) *--at = kDigits[static_cast<std::size_t>(bits & 15)];
}

}  // namespace

std::size_t LineSize(const std::vector<TextField>& fields, const std::string& end) {
  std::size_t size = end.size();
  for (const TextField& field : fields) size += field.before.size() + field.digits();
  return size;
}

void WriteLines(const std::vector<TextField>& fields, const std::string& end, std::int64_t n,
                char* out) {
  const std::size_t size = LineSize(fields, end);
  parallel_for(n, kTextAtOnce, kTextAtOnce, [&](std::int64_t begin, std::int64_t stop) {
    char* at = out + static_cast<std::size_t>(begin) * size;
    const auto put = [&](const std::string& text) {
      std::memcpy(at, text.data(), text.size());
      at += text.size();
    };
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(stop); ++i) {
      for (const TextField& field : fields) {
        put(field.before);
        PutDigits(field, i, at);
        at += field.digits();
      }
      put(end);
    }
  });
}

}  // namespace cpd
