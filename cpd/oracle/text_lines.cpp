// SPDX-License-Identifier: Apache-2.0
#include "cpd/oracle/text_lines.h"

#include <algorithm>
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

/// The number of bytes after a text that the function that writes the text may overwrite, because
/// it copies eight bytes at a time. A line has at least one byte, so kSpare lines hold all
/// overwritten bytes.
constexpr std::size_t kSpare = 8;

void Store(std::uint64_t bytes, char* out) { std::memcpy(out, &bytes, sizeof bytes); }

/// Returns the hexadecimal digits of a number of at most 32 bits as characters. The first digit is
/// in the lowest byte.
std::uint64_t ShortDigits(std::uint64_t number, std::size_t digits) {
  constexpr std::uint64_t ones = 0x0101010101010101;
  number = (number | number << 16) & 0x0000FFFF0000FFFF;
  number = (number | number << 8) & 0x00FF00FF00FF00FF;
  number = (number | number << 4) & 0x0F0F0F0F0F0F0F0F;
  const std::uint64_t letters = (number + 6 * ones) >> 4 & ones;
  return __builtin_bswap64(number + '0' * ones + ('A' - '9' - 1) * letters) >> (64 - 8 * digits);
}

/// Writes the hexadecimal digits of line i's field, from the last digit to the first.
void PutLongDigits(const TextField& field, std::size_t i, char* out) {
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

/// Writes a fixed text and then, if `field` is set, the digits of a line's field.
class Writer {
 public:
  explicit Writer(const std::string& text, const TextField* field = nullptr)
      : text_(text), field_(field), digits_(field == nullptr ? 0 : field->digits()) {
    if (text.size() <= kSpare) std::memcpy(&bytes_, text.data(), text.size());
  }

  /// Writes the text that was passed to the constructor and, if a field was passed, the digits of
  /// the field in line i. Returns the address after the last byte.
  char* Put(std::size_t i, char* out) const {
    if (text_.size() <= kSpare) {
      Store(bytes_, out);
    } else {
      std::memcpy(out, text_.data(), text_.size());
    }
    out += text_.size();
    if (field_ == nullptr) return out;
    if (field_->count == 1 && field_->width <= 32) {
      Store(ShortDigits(NumberAt(*field_, i), digits_), out);
    } else {
      PutLongDigits(*field_, i, out);
    }
    return out + digits_;
  }

 private:
  const std::string& text_;
  const TextField* field_;
  std::size_t digits_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

std::size_t LineSize(const std::vector<TextField>& fields, const std::string& end) {
  std::size_t size = end.size();
  for (const TextField& field : fields) size += field.before.size() + field.digits();
  return size;
}

void WriteLines(const std::vector<TextField>& fields, const std::string& end, std::int64_t n,
                char* out) {
  const std::size_t size = LineSize(fields, end);
  std::vector<Writer> writers;
  for (const TextField& field : fields) writers.emplace_back(field.before, &field);
  writers.emplace_back(end);
  const auto put = [&](std::size_t first, std::size_t count, char* at) {
    for (std::size_t k = 0; k < count; ++k) {
      char* place = at + k * size;
      for (const Writer& writer : writers) place = writer.Put(first + k, place);
    }
  };
  parallel_for(n, kTextAtOnce, kTextAtOnce, [&](std::int64_t begin, std::int64_t stop) {
    const auto first = static_cast<std::size_t>(begin);
    const auto count = static_cast<std::size_t>(stop - begin);
    // The function that writes a line may overwrite a few bytes after the line. Another thread
    // writes the lines after this range. So the last lines of this range are written to a buffer
    // and then copied.
    const std::size_t rest = std::min(count, kSpare);
    const std::size_t last = first + count - rest;
    put(first, count - rest, out + first * size);
    std::vector<char> lines(rest * size + kSpare);
    put(last, rest, lines.data());
    std::memcpy(out + last * size, lines.data(), rest * size);
  });
}

}  // namespace cpd
