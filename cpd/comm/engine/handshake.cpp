// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/handshake.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ranges>

namespace cpd {
namespace {

constexpr std::size_t kRecord = 1024;  // bytes of each rank's text that are sent first
constexpr const char* kVersion = "6";  // of the protocol between ranks

/// Returns an FNV-1a hash of layers' sizes or shapes, for the comparison between ranks.
std::uint64_t Hash(std::span<const std::int64_t> numbers) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const std::int64_t number : numbers) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<std::uint64_t>(number) >> (8 * byte) & 0xFF)) * 0x100000001B3U;
    }
  }
  return hash;
}

std::string ToText(const RoundingOptions& options) {
  return ToString(options.mode) + " " + ToString(options.overflow) + " " +
         std::to_string(options.random_bits) + " " + ToString(options.variant);
}

std::string NameOf(Aps aps) {
  if (aps == Aps::paper) return "paper";
  return aps == Aps::on ? "on" : "off";
}

/// The text that a rank announces to the other ranks: its fields, one a line, and the reason for
/// its refusal, if it refuses.
struct Announcement {
  Intent fields;  ///< first the version, then the length of the text
  std::string refusal;
};

std::string TextOf(const Intent& fields, const std::string& refusal) {
  std::string text;
  for (const auto& [name, value] : fields) {
    text.append(name).append("\t").append(value).append("\n");
  }
  return text + "\n" + refusal;
}

/// Reads the text of an announcement. If the text was cut, the field at the cut is incomplete.
Announcement Parse(const std::string& text) {
  Announcement announced;
  std::size_t at = 0;
  while (at < text.size() && text[at] != '\n') {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::size_t tab = std::min(text.find('\t', at), end);
    announced.fields.emplace_back(text.substr(at, tab - at),
                                  tab < end ? text.substr(tab + 1, end - tab - 1) : "");
    at = std::min(end + 1, text.size());
  }
  if (at < text.size()) announced.refusal = text.substr(at + 1);
  return announced;
}

/// Returns the text with spaces in place of zero bytes, which would end an exception's text. A text
/// above kMostRefusal bytes is cut between two UTF-8 characters.
std::string Shortened(std::string text) {
  std::ranges::replace(text, '\0', ' ');
  const auto is_inside = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;  // of UTF-8
  };
  if (text.size() <= kMostRefusal) return text;
  std::size_t end = kMostRefusal;
  while (end > 0 && is_inside(end)) --end;
  return text.substr(0, end) + " … (shortened from " + std::to_string(text.size()) + " bytes)";
}

/// Gathers a text from every rank and returns the texts. Each text is padded with zeros or cut to
/// `bytes` bytes.
std::vector<std::string> Gather(Link& link, std::string own, std::size_t bytes) {
  own.resize(bytes);
  const std::vector<std::uint8_t> all = link.AllGather(
      Phase::handshake, {reinterpret_cast<const std::uint8_t*>(own.data()), own.size()});
  std::vector<std::string> texts;
  for (auto begin = all.begin(); begin < all.end(); begin += static_cast<std::ptrdiff_t>(bytes)) {
    texts.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(bytes));
  }
  return texts;
}

/// Returns the length of a whole text, which its beginning states; 0 if the text is of another
/// version of the protocol.
std::size_t LengthOf(const std::string& beginning) {
  const Intent fields = Parse(beginning).fields;
  if (fields.size() < 2 || fields[0].second != kVersion) return 0;
  std::size_t length = 0;
  for (const char digit : fields[1].second) {
    length = length * 10 + static_cast<std::size_t>(digit - '0');
  }
  return length;
}

/// Gathers the announcements of all ranks, which are texts. This rank announces `intent` and
/// `refusal`. The ranks first exchange the first kRecord bytes of each text; these include the
/// text's length. If any text is longer, the ranks gather all texts again, uncut.
std::vector<Announcement> GatherAnnouncements(Link& link, const Intent& intent,
                                              const std::string& refusal) {
  const std::string rest = TextOf(intent, Shortened(refusal));
  constexpr std::size_t digits = 12;  // fixed: a length cannot change the text's length
  const auto begin = [&](std::size_t length) {
    std::string number = std::to_string(length);
    number.insert(0, digits - number.size(), '0');
    return "version\t" + std::string(kVersion) + "\nlength\t" + number + "\n";
  };
  const std::string own = begin(begin(0).size() + rest.size()) + rest;
  std::vector<std::string> texts = Gather(link, own, kRecord);
  std::vector<std::size_t> lengths(texts.size());
  std::ranges::transform(texts, lengths.begin(), LengthOf);
  const std::size_t longest = *std::ranges::max_element(lengths);
  const bool same_version = std::ranges::find(lengths, 0U) == lengths.end();
  if (same_version && longest > kRecord) texts = Gather(link, own, longest);
  std::vector<Announcement> announced;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    if (same_version) texts[r].resize(lengths[r]);
    announced.push_back(Parse(texts[r]));
    if (same_version) announced.back().fields.erase(announced.back().fields.begin() + 1);
  }
  return announced;
}

std::string Differs(const std::string& what, const std::string& first, int rank,
                    const std::string& other) {
  return "the ranks do not agree: " + what + " is " + first + " on rank 0 and " + other +
         " on rank " + std::to_string(rank);
}

/// Throws the Mismatch that names the first layer whose size differs between ranks. All ranks have
/// the same number of layers.
[[noreturn]] void NameLayer(Link& link, std::span<const std::int64_t> sizes,
                            std::span<const std::int64_t> numbers) {
  const std::span<const std::uint8_t> own{reinterpret_cast<const std::uint8_t*>(sizes.data()),
                                          sizes.size_bytes()};
  const std::vector<std::uint8_t> all = link.AllGather(Phase::handshake, own);
  const auto size_of = [&](int rank, std::size_t layer) {
    std::int64_t size = 0;
    std::memcpy(&size,
                all.data() + static_cast<std::size_t>(rank) * own.size() + layer * sizeof(size),
                sizeof(size));
    return size;
  };
  for (int rank = 1; rank < link.transport().size(); ++rank) {
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      if (size_of(rank, l) == size_of(0, l)) continue;
      const std::int64_t number = numbers.empty() ? static_cast<std::int64_t>(l) : numbers[l];
      throw Mismatch(Differs("the size of tensor " + std::to_string(number),
                             std::to_string(size_of(0, l)), rank,
                             std::to_string(size_of(rank, l))));
    }
  }
  throw Mismatch("the ranks do not agree on the tensors' sizes");
}

/// Returns each layer's shape as Python writes it: (2, 3).
std::vector<std::string> ShapeTexts(std::span<const std::int64_t> shapes) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < shapes.size();) {
    const auto rank = static_cast<std::size_t>(shapes[at++]);
    std::string text = "(";
    for (std::size_t d = 0; d < rank && at < shapes.size(); ++d) {
      text += (d == 0 ? "" : ", ") + std::to_string(shapes[at++]);
    }
    texts.push_back(text + (rank == 1 ? ",)" : ")"));
  }
  return texts;
}

/// Throws the Mismatch that names the first layer whose shape differs between ranks.
[[noreturn]] void NameShape(Link& link, std::span<const std::int64_t> shapes,
                            std::span<const std::int64_t> numbers) {
  const auto bytes = [](std::span<const std::int64_t> values) {
    return std::span{reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()};
  };
  const auto count = static_cast<std::int64_t>(shapes.size_bytes());
  const std::vector<std::uint8_t> counted = link.AllGather(Phase::handshake, bytes({&count, 1}));
  std::vector<std::int64_t> lengths(counted.size() / sizeof(count));
  std::memcpy(lengths.data(), counted.data(), counted.size());
  const std::vector<std::uint8_t> all = link.AllGather(Phase::handshake, bytes(shapes), lengths);
  std::vector<std::string> first;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    const auto length = static_cast<std::size_t>(lengths[rank]);
    std::vector<std::int64_t> own(length / sizeof(count));
    if (length > 0) std::memcpy(own.data(), all.data() + begin, length);
    begin += length;
    const std::vector<std::string> texts = ShapeTexts(own);
    if (rank == 0) first = texts;
    for (std::size_t l = 0; l < std::min(first.size(), texts.size()); ++l) {
      if (texts[l] == first[l]) continue;
      const std::int64_t number = numbers.empty() ? static_cast<std::int64_t>(l) : numbers[l];
      throw Mismatch(Differs("the shape of tensor " + std::to_string(number), first[l],
                             static_cast<int>(rank), texts[l]));
    }
  }
  throw Mismatch("the ranks do not agree on the tensors' shapes");
}

}  // namespace

Intent IntentOf(const std::string& operation, const Reduce& spec, std::uint64_t seed,
                std::uint64_t step) {
  const bool grouped = spec.group_size > 0;
  return {{"operation", operation},
          {"wire",
           spec.wire == nullptr ? "format " + ToString(spec.format) : "codec " + spec.wire->text()},
          {"rounding", ToText(spec.rounding)},
          {"accumulator", ToString(spec.accumulator)},
          {"accumulator's rounding", ToText(spec.accumulator.rounding)},
          {"result", ToString(spec.result)},
          {"order", ToString(spec.order)},
          {"exchange", ToString(spec.exchange)},
          {"group_size", grouped ? std::to_string(spec.group_size) : "none"},
          {"aps", NameOf(spec.aps)},
          {"loss_scale", "2^" + std::to_string(std::ilogb(spec.loss_scale))},
          {"average", spec.average ? "on" : "off"},
          {"divide", ToString(spec.divide)},
          {"seed", std::to_string(seed)},
          {"step", std::to_string(step)}};
}

std::string NumbersText(std::span<const std::int64_t> numbers) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  if (std::ranges::equal(numbers, std::views::iota(std::int64_t{0}, count))) return "0, 1, …";
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += (i == 0 ? "" : " ") + std::to_string(numbers[i]);
    if (end > i + 1) text += "-" + std::to_string(numbers[end - 1]);
    i = end;
  }
  return text;
}

void Handshake(Link& link, const Intent& intent, std::span<const std::int64_t> sizes,
               const std::string& refusal, std::span<const std::int64_t> numbers,
               std::span<const std::int64_t> shapes) {
  Intent own{intent.front(),
             {"number of tensors", std::to_string(sizes.size())},
             {"tensors' sizes", std::to_string(Hash(sizes))},
             {"tensors' shapes", std::to_string(Hash(shapes))}};
  own.insert(own.end(), intent.begin() + 1, intent.end());
  const std::vector<Announcement> announced = GatherAnnouncements(link, own, refusal);
  if (!refusal.empty()) return;
  for (std::size_t rank = 0; rank < announced.size(); ++rank) {
    if (announced[rank].refusal.empty()) continue;
    throw Mismatch("rank " + std::to_string(rank) + " refuses: " + announced[rank].refusal);
  }
  const Intent& first = announced[0].fields;
  for (std::size_t r = 1; r < announced.size(); ++r) {
    const Intent& other = announced[r].fields;
    if (other == first) continue;
    const int rank = static_cast<int>(r);
    const std::size_t fields = std::min(first.size(), other.size());
    for (std::size_t i = 0; i < fields; ++i) {
      if (first[i] == other[i]) continue;
      if (first[i].first == "tensors' sizes") NameLayer(link, sizes, numbers);
      if (first[i].first == "tensors' shapes") NameShape(link, shapes, numbers);
      throw Mismatch(Differs(first[i].first, first[i].second, rank, other[i].second));
    }
    throw Mismatch(Differs("the call", first.back().first, rank, other.back().first));
  }
}

}  // namespace cpd
