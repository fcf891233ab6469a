// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/hadamard.h"

#include <bit>
#include <charconv>

#include "cpd/spec/options.h"

namespace cpd {
namespace {

constexpr std::string_view kName = "hadamard";
constexpr std::string_view kSigns = "signs=";

/// Returns the signs as a text: `0x` and their bits in hexadecimal digits, without leading zeros.
std::string SignsText(const Hadamard::Signs& signs) {
  std::string digits;
  for (int bit = Hadamard::kMostSize - 4; bit >= 0; bit -= 4) {
    const std::uint32_t digit = signs[static_cast<std::size_t>(bit / 32)] >> (bit % 32) & 15U;
    if (digit != 0 || !digits.empty()) digits += "0123456789abcdef"[digit];
  }
  return "0x" + (digits.empty() ? "0" : digits);
}

Hadamard::Signs ParseSigns(std::string_view text) {
  constexpr std::size_t kMostDigits = Hadamard::kMostSize / 4;
  const auto refuse = [&]() -> Error {
    return Error("a Hadamard transform's signs must be te or 0x and at most " +
                 std::to_string(kMostDigits) + " digits, got " + Quoted(text));
  };
  if (text.empty()) return {};
  if (text == "te") return Hadamard::kTe;
  const std::string_view digits = text.substr(std::min<std::size_t>(2, text.size()));
  if (!text.starts_with("0x") || digits.empty() || digits.size() > kMostDigits) throw refuse();
  Hadamard::Signs signs{};
  for (std::size_t i = 0; i < digits.size(); ++i) {
    std::uint32_t digit = 0;
    const char* at = digits.data() + i;
    if (std::from_chars(at, at + 1, digit, 16).ec != std::errc()) throw refuse();
    const std::size_t bit = 4 * (digits.size() - 1 - i);
    signs[bit / 32] |= digit << (bit % 32);
  }
  return signs;
}

}  // namespace

void Check(const Hadamard& transform) {
  const int size = transform.size;
  if (size < 2 || size > Hadamard::kMostSize || !std::has_single_bit(static_cast<unsigned>(size))) {
    throw Error("a Hadamard transform's size must be a power of two, 2…" +
                std::to_string(Hadamard::kMostSize) + ", got " + std::to_string(size));
  }
  for (int i = size; i < Hadamard::kMostSize; ++i) {
    if (!transform.negates(i)) continue;
    throw Error("a Hadamard transform of size " + std::to_string(size) + " has " +
                std::to_string(size) + " signs, got " + SignsText(transform.signs));
  }
}

std::string ToString(const Hadamard& transform) {
  std::string text = std::string(kName) + std::to_string(transform.size);
  if (transform.size == 16 && transform.signs == Hadamard::kTe) {
    text += ":te";
  } else if (transform.signs != Hadamard::Signs{}) {
    text += ":" + std::string(kSigns) + SignsText(transform.signs);
  }
  return transform.to_bf16 ? text + ":bf16" : text;
}

Hadamard ParseHadamard(std::string_view text) {
  const auto refuse = [&]() -> Error {
    return Error(
        "a Hadamard transform's text is hadamardN, then :te or :signs=0x… and :bf16, got " +
        Quoted(text));
  };
  if (!text.starts_with(kName)) throw refuse();
  std::string_view rest = text.substr(kName.size());
  int size = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
  if (error != std::errc()) throw refuse();
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  std::string_view signs;
  bool to_bf16 = false;
  while (!rest.empty()) {
    if (rest[0] != ':') throw refuse();
    rest.remove_prefix(1);
    const std::string_view word = rest.substr(0, rest.find(':'));
    rest.remove_prefix(word.size());
    if (word == "bf16" && !to_bf16) {
      to_bf16 = true;
    } else if (word == "te" && signs.empty() && !to_bf16) {
      signs = word;
    } else if (word.starts_with(kSigns) && word != kSigns && signs.empty() && !to_bf16) {
      signs = word.substr(kSigns.size());
    } else {
      throw refuse();
    }
  }
  if (signs == "te" && size != 16) {
    throw Error("the signs te are for 16 inputs, got a Hadamard transform of size " +
                std::to_string(size));
  }
  const Hadamard transform{size, ParseSigns(signs), to_bf16};
  Check(transform);
  return transform;
}

Fields FieldsOf(const Hadamard& transform) {
  return {{"size", FieldOf(transform.size)},
          {"signs", FieldOf(SignsText(transform.signs))},
          {"bf16", FieldOf(transform.to_bf16)}};
}

}  // namespace cpd
