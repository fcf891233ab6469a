// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/handshake.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace cpd {
namespace {

constexpr std::size_t kRecord = 1024;  // bytes of a rank's text
constexpr const char* kVersion = "1";  // of what goes over the wire

/// FNV-1a over the sizes.
std::uint64_t Hash(std::span<const std::int64_t> sizes) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const std::int64_t size : sizes) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<std::uint64_t>(size) >> (8 * byte) & 0xFF)) * 0x100000001B3U;
    }
  }
  return hash;
}

std::string ToText(const RoundingOptions& options) {
  return ToString(options.mode) + " " + ToString(options.overflow) + " " +
         std::to_string(options.random_bits) + " " + ToString(options.variant);
}

std::vector<std::uint8_t> Record(const Intent& intent) {
  std::string text;
  for (const auto& [name, value] : intent) {
    text.append(name).append("\t").append(value).append("\n");
  }
  text.resize(kRecord);  // filled with zeros, or cut at the end
  return {text.begin(), text.end()};
}

Intent Parse(std::span<const std::uint8_t> record) {
  Intent intent;
  std::string text(record.begin(), record.end());
  text.resize(std::strlen(text.c_str()));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::size_t tab = std::min(text.find('\t', at), end);
    intent.emplace_back(text.substr(at, tab - at),
                        tab < end ? text.substr(tab + 1, end - tab - 1) : "");
    at = end + 1;
  }
  return intent;
}

std::string Differs(const std::string& what, const std::string& first, int rank,
                    const std::string& other) {
  return "the ranks do not agree: " + what + " is " + first + " on rank 0 and " + other +
         " on rank " + std::to_string(rank);
}

/// The layers' sizes differ, though there are as many: says which.
[[noreturn]] void NameLayer(Link& link, std::span<const std::int64_t> sizes) {
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
      throw Mismatch(Differs("the size of layer " + std::to_string(l),
                             std::to_string(size_of(0, l)), rank,
                             std::to_string(size_of(rank, l))));
    }
  }
  throw Mismatch("the ranks do not agree on the layers' sizes");
}

}  // namespace

Intent IntentOf(const ReduceSpec& spec) {
  return {{"format", ToString(spec.format)},
          {"rounding", ToText(spec.rounding)},
          {"seed", std::to_string(spec.rounding.seed)},
          {"accumulator", ToString(spec.accumulator)},
          {"accumulator's rounding", ToText(spec.accumulator.rounding)},
          {"accumulator's seed", std::to_string(spec.accumulator.rounding.seed)},
          {"result", ToString(spec.result)},
          {"order", ToString(spec.order)},
          {"exchange", ToString(spec.exchange)},
          {"group_size", std::to_string(spec.group_size)},
          {"aps", std::to_string(static_cast<int>(spec.aps))},
          {"loss_scale", std::to_string(std::bit_cast<std::uint64_t>(spec.loss_scale) >> 52) +
                             " (exponent + 1023)"},
          {"average", spec.average ? "on" : "off"},
          {"step", std::to_string(spec.step)}};
}

void Handshake(Link& link, const Intent& intent, std::span<const std::int64_t> sizes,
               const std::string& refusal) {
  Intent own{{"version", kVersion},
             {"refusal", refusal.substr(0, kRecord / 2)},
             {"number of layers", std::to_string(sizes.size())},
             {"layers' sizes", std::to_string(Hash(sizes))}};
  own.insert(own.end(), intent.begin(), intent.end());
  const std::vector<std::uint8_t> record = Record(own);
  const std::vector<std::uint8_t> all = link.AllGather(Phase::handshake, record);
  if (!refusal.empty()) return;
  const auto of = [&](int rank) {
    return Parse(std::span(all).subspan(static_cast<std::size_t>(rank) * kRecord, kRecord));
  };
  const int size = link.transport().size();
  for (int rank = 0; rank < size; ++rank) {
    const Intent other = of(rank);
    if (other.size() > 1 && !other[1].second.empty()) {
      throw Mismatch("rank " + std::to_string(rank) + " refuses: " + other[1].second);
    }
  }
  const Intent first = of(0);
  for (int rank = 1; rank < size; ++rank) {
    const Intent other = of(rank);
    if (other == first) continue;
    const std::size_t fields = std::min(first.size(), other.size());
    for (std::size_t i = 0; i < fields; ++i) {
      if (first[i] == other[i]) continue;
      if (first[i].first == "layers' sizes") NameLayer(link, sizes);
      throw Mismatch(Differs(first[i].first, first[i].second, rank, other[i].second));
    }
    throw Mismatch(Differs("the call", first.back().first, rank, other.back().first));
  }
}

}  // namespace cpd
