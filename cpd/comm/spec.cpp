// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <sstream>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/scaled_blocks.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"
#include "cpd/spec/scaled.h"

namespace cpd {
namespace {

constexpr std::array<std::string_view, 3> kOrders{"sequential", "ring", "tree"};
constexpr std::array<std::string_view, 4> kExchanges{"owner", "gather", "ring", "hierarchical"};
constexpr std::array<std::string_view, 2> kDivides{"after", "before"};

void CheckLossScale(const Reduce& spec) {
  if (!IsLossScale(spec.loss_scale)) {
    std::ostringstream given;
    given << spec.loss_scale;
    throw Error("loss_scale must be a power of two from 2^-126 to 2^126, got " + given.str());
  }
  if (spec.aps != Aps::off && spec.loss_scale != 1) {
    throw Error("aps and loss_scale exclude each other: APS chooses the scale of each tensor");
  }
}

void CheckOrder(const Reduce& spec) {
  const bool grouped = spec.group_size > 0;
  if (spec.order == Order::tree && spec.accumulator.scheme != Scheme::sequential) {
    throw Error("order tree merges sums two by two: its accumulator must be sequential, got " +
                ToString(spec.accumulator.scheme));
  }
  if (spec.exchange == Exchange::ring && (spec.order != Order::ring || grouped)) {
    throw Error("exchange ring needs order ring and no groups, got order " + ToString(spec.order) +
                (grouped ? " with groups" : ""));
  }
  if (spec.exchange == Exchange::hierarchical && (spec.order != Order::ring || !grouped)) {
    throw Error("exchange hierarchical needs a group_size and order ring, got order " +
                ToString(spec.order) + (grouped ? "" : " without groups"));
  }
  if (spec.exchange != Exchange::owner && spec.exchange != Exchange::gather &&
      spec.accumulator.scheme == Scheme::pairwise) {
    throw Error("exchange " + ToString(spec.exchange) +
                " hands partial sums on: its accumulator must not be pairwise");
  }
}

// ---- the keys of a text ---------------------------------------------------------------------

bool IsCompressor(std::string_view head) {
  const std::string_view name = head.substr(0, head.find(' '));
  return std::ranges::find(Compressors(), name, &CodecInfo::name) != Compressors().end();
}

/// Returns the text of the format or the codec of contributions.
std::string HeadOf(const Reduce& spec) {
  return spec.wire == nullptr ? ToString(spec.format) : spec.wire->name();
}

FieldValue FormatOf(const Reduce& spec) {
  const std::string head = HeadOf(spec);
  return IsCompressor(head) ? FieldValue{} : FieldOf(head);
}

void SetGroupSize(Reduce& spec, std::string_view text) {
  spec.group_size = ParseInteger<int>("group_size", text);
  if (spec.group_size < 1) {
    throw Error("group_size must be at least 1, got " + std::to_string(spec.group_size));
  }
}

FieldValue GroupSizeOf(const Reduce& spec) {
  return spec.group_size == 0 ? FieldValue{} : FieldOf(spec.group_size);
}

void SetAps(Reduce& spec, std::string_view text) {
  constexpr std::array<std::string_view, 3> kAps{"false", "true", "paper"};
  spec.aps = ParseName<Aps>("aps", kAps, text);
}

FieldValue ApsOf(const Reduce& spec) {
  return spec.aps == Aps::paper ? FieldOf("paper") : FieldOf(spec.aps == Aps::on);
}

void SetLossScale(Reduce& spec, std::string_view text) {
  const auto [end, error] = std::from_chars(text.begin(), text.end(), spec.loss_scale);
  if (error == std::errc() && end == text.end() && IsLossScale(spec.loss_scale)) return;
  throw Error("loss_scale must be a power of two from 2^-126 to 2^126, got " + std::string(text));
}

constexpr std::array<Key<Reduce>, 15> kReduceKeys{{
    {"format", "cast", nullptr, &FormatOf},
    {"codec", "codec", nullptr, [](const Reduce& spec) { return FieldOf(HeadOf(spec)); }},
    {"accumulator", "accumulator",
     [](Reduce& spec, std::string_view text) { spec.accumulator = ParseAccumulator(text); },
     [](const Reduce& spec) { return FieldOf(spec.accumulator); }},
    KeyOf<"order", &Reduce::order>(),
    KeyOf<"exchange", &Reduce::exchange>(),
    {"group_size", "integer", &SetGroupSize, &GroupSizeOf},
    {"aps", "aps", &SetAps, &ApsOf},
    {"loss_scale", "number", &SetLossScale,
     [](const Reduce& spec) { return FieldOf(spec.loss_scale); }},
    KeyOf<"average", &Reduce::average>(),
    KeyOf<"divide", &Reduce::divide>(),
    KeyOf<"rounding", &Reduce::rounding, &RoundingOptions::mode>(),
    KeyOf<"overflow", &Reduce::rounding, &RoundingOptions::overflow>(),
    KeyOf<"random_bits", &Reduce::rounding, &RoundingOptions::random_bits>(),
    KeyOf<"variant", &Reduce::rounding, &RoundingOptions::variant>(),
    KeyOf<"result", &Reduce::result>(),
}};

// ---- what contributions become --------------------------------------------------------------

/// Returns the codec of a scaled format or a compressor; null for a plain format.
SharedCodec WireOf(std::string_view head, const RoundingOptions& rounding) {
  if (IsCompressor(head)) return MakeCodec(head, rounding);
  if (!NamesScaled(head)) return nullptr;
  return std::make_shared<ScaledBlocks>(ParseScaled(head), rounding);
}

/// Returns the reduction with default options for contributions in the form `head`: a format, a
/// scaled format or a compressor. Leaves its codec (`wire`) null.
Reduce Usual(const std::string& head) {
  if (!IsCompressor(head) && !NamesScaled(head)) return Reduce(ParseFormat(head));
  Reduce spec;
  if (!IsCompressor(head)) spec.rounding.overflow = Overflow::saturate;
  return spec;
}

bool NamesFormat(const std::string& text) {
  try {
    ParseFormat(text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Returns the reduction with default options for contributions in the form `head` (Usual), and
/// sets its codec (`wire`). If `head` is invalid because of a misspelled key, the error names that
/// key.
Reduce ParseHead(const std::string& head) {
  try {
    Reduce spec = Usual(head);
    spec.wire = WireOf(head, spec.rounding);
    return spec;
  } catch (const Error& error) {
    const std::vector<std::string> words = WordsOf(head);
    const Keys<Reduce> keys = KeysOf<Reduce>();
    for (std::size_t i = 1; i < words.size(); ++i) {
      const std::string name = words[i].substr(0, words[i].find('='));
      const bool is_near = !Nearest(name, NamesOf(keys)).empty();
      const bool is_key = NamesFormat(words[0]) && !IsBlockWord(words[i]);
      if (is_key && std::ranges::find(NamesOf(Scheme{}), words[i]) != NamesOf(Scheme{}).end()) {
        throw Error(Quoted(words[i]) + " is a scheme of a sum: write accumulator='" + words[0] +
                    " " + words[i] + "'");
      }
      if (is_near || is_key) RefuseOption(name, keys.owner, NamesOf(keys));
    }
    if (std::string_view(error.what()).starts_with("unknown format")) {
      (void)MakeCodec(head);  // the error of MakeCodec names the compressors, too
    }
    throw;
  }
}

/// Throws Error if an option of a cast is set, since a compressor has no such options.
void CheckCompressor(const Reduce& spec) {
  const Reduce usual;
  for (const std::string_view name : {"rounding", "overflow", "variant"}) {
    const Key<Reduce>& key = KeyNamed(KeysOf<Reduce>(), name);
    if (key.get(spec) == key.get(usual)) continue;
    throw Error(std::string(name) + " is an option of a cast, which codec " +
                Quoted(spec.wire->name()) + " is not; got " + Quoted(TextOf(key.get(spec))));
  }
}

// ---- texts ----------------------------------------------------------------------------------

/// A text, split into the format or codec of contributions and the keys.
struct Parts {
  std::string head;
  std::vector<Option> keys;
};

Parts PartsOf(std::string_view text) {
  Parts parts;
  for (const std::string& word : WordsOf(text)) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name == "seed" || name == "step") {
      throw Error("an all-reduce has no " + name +
                  ": give it to the call, cpd.simulate_all_reduce(…, " + name +
                  "=…), in place of " + Quoted(text));
    }
    const auto* const key = std::ranges::find(kReduceKeys, name, &Key<Reduce>::name);
    if (key == kReduceKeys.end() || !key->IsKey()) {
      parts.head += (parts.head.empty() ? "" : " ") + word;
      continue;
    }
    const bool is_switch = key->kind == "switch" || key->kind == "aps";
    if (equals == std::string::npos && !is_switch) {
      throw Error(name + " needs a value, as in " + name + "=…, in " + Quoted(text));
    }
    if (ValueOf(parts.keys, name) != nullptr) {
      throw Error(name + " is given twice in " + Quoted(text));
    }
    parts.keys.emplace_back(name, equals == std::string::npos ? "true" : word.substr(equals + 1));
  }
  return parts;
}

}  // namespace

Order ParseOrder(std::string_view name) { return ParseName<Order>("order", name); }
Exchange ParseExchange(std::string_view name) { return ParseName<Exchange>("exchange", name); }
Divide ParseDivide(std::string_view name) { return ParseName<Divide>("divide", name); }

std::span<const std::string_view> NamesOf(Order /*order*/) { return kOrders; }
std::span<const std::string_view> NamesOf(Exchange /*exchange*/) { return kExchanges; }
std::span<const std::string_view> NamesOf(Divide /*divide*/) { return kDivides; }

template <>
Keys<Reduce> KeysOf<Reduce>() {
  return {"an all-reduce", kReduceKeys};
}

Reduce ParseReduce(std::string_view text) { return Make<Reduce>(text, {}); }

template <>
Reduce Make<Reduce>(std::string_view text, std::span<const Option> keys) {
  const Parts parts = PartsOf(text);
  Reduce spec = ParseHead(parts.head);
  SetKeys(KeysOf<Reduce>(), Merged(parts.keys, keys), spec);
  if (IsCompressor(parts.head)) {
    CheckCompressor(spec);
  } else {
    Check(spec.rounding);
    CheckDraws(spec.rounding);
  }
  spec.wire = WireOf(parts.head, spec.rounding);
  if (spec.wire != nullptr) spec.format = spec.wire->format();
  Check(spec);
  return spec;
}

std::vector<Option> OptionsOf(const Reduce& spec) {
  const Reduce usual = Usual(HeadOf(spec));
  std::vector<Option> options;
  for (const Key<Reduce>& key : kReduceKeys) {
    const FieldValue value = key.get(spec);
    if (key.IsKey() && value != key.get(usual)) options.emplace_back(key.name, TextOf(value));
  }
  return options;
}

std::string ToString(const Reduce& spec) {
  std::string text = HeadOf(spec);
  for (const auto& [name, value] : OptionsOf(spec)) {
    text += value == "true" ? " " + name : Written(name, value);
  }
  return text;
}

bool IsLossScale(double scale) {
  int exponent = 0;
  return scale > 0 && std::frexp(scale, &exponent) == 0.5 && std::abs(exponent - 1) <= 126;
}

void Check(const Reduce& spec) {
  Check(spec.format);
  Check(spec.rounding);
  Check(spec.accumulator);
  if (spec.accumulator.unit || spec.accumulator.fixed) {
    throw Error("the scheme of a sum must be sequential, kahan, chunked or pairwise, got '" +
                ToString(spec.accumulator.scheme) + "', which is for cpd.gemm" +
                (spec.accumulator.fixed ? " and cpd.sum" : ""));
  }
  Check(spec.result);
  if (spec.wire != nullptr && spec.wire->format() != spec.format) {
    throw Error("format must be that of the values of codec '" + spec.wire->text() + "', " +
                ToString(spec.wire->format()) + ", got " + ToString(spec.format));
  }
  if (spec.wire != nullptr && spec.wire->has_scales() && spec.aps != Aps::off) {
    throw Error("aps chooses a scale of each tensor; codec '" + spec.wire->name() +
                "' has scales of its own");
  }
  const bool hops = spec.exchange == Exchange::ring || spec.exchange == Exchange::hierarchical;
  if (spec.wire != nullptr && !spec.wire->may_hop() && hops) {
    throw Error("exchange " + ToString(spec.exchange) +
                " hands partial sums on, for which codec '" + spec.wire->name() +
                "' has no bytes: take exchange owner or gather");
  }
  CheckName("order", spec.order);
  CheckName("exchange", spec.exchange);
  CheckName("divide", spec.divide);
  Check(spec.aps);
  if (spec.group_size < 0) {
    throw Error("group_size must be at least 1 (0: no groups), got " +
                std::to_string(spec.group_size));
  }
  CheckLossScale(spec);
  CheckOrder(spec);
}

void Check(const Reduce& spec, int world) {
  Check(spec);
  if (world < 1) throw Error("world must be at least 1, got " + std::to_string(world));
  if (spec.group_size > world) {
    throw Error("group_size must be 1…" + std::to_string(world) + " (the ranks), got " +
                std::to_string(spec.group_size));
  }
}

bool MayStall(const Reduce& spec, int world) {
  Check(spec);
  if (spec.accumulator.scheme != Scheme::sequential || spec.order == Order::tree ||
      !is_nearest(spec.accumulator.rounding.mode)) {
    return false;
  }
  const int groups = spec.group_size == 0 ? world : (world - 1) / spec.group_size + 1;
  const int terms = std::max(groups, std::min(world, spec.group_size));
  return terms > std::ldexp(1.0, spec.accumulator.format.precision());
}

}  // namespace cpd
