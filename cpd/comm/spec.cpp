// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <sstream>
#include <variant>

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

/// A key of a text: its kind, what sets it, and its value.
struct ReduceKey {
  std::string_view name, kind;
  void (*set)(Reduce& spec, std::string_view text);
  FieldValue (*get)(const Reduce& spec);
};

bool ParseSwitch(std::string_view name, std::string_view text) {
  constexpr std::array<std::string_view, 2> kSwitches{"false", "true"};
  return ParseName<int>(std::string(name).c_str(), kSwitches, text) == 1;
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

/// One of the options of the cast's rounding.
template <auto member>
constexpr ReduceKey OfRounding(std::string_view name, std::string_view kind,
                         void (*set)(Reduce& spec, std::string_view text)) {
  return {name, kind, set, [](const Reduce& spec) { return FieldOf(spec.rounding.*member); }};
}

/// Every key in the order of a canonical text.
constexpr std::array<ReduceKey, 13> kKeys{{
    {"accumulator", "accumulator",
     [](Reduce& spec, std::string_view text) { spec.accumulator = ParseAccumulator(text); },
     [](const Reduce& spec) { return FieldOf(spec.accumulator); }},
    {"order", "word", [](Reduce& spec, std::string_view text) { spec.order = ParseOrder(text); },
     [](const Reduce& spec) { return FieldOf(spec.order); }},
    {"exchange", "word",
     [](Reduce& spec, std::string_view text) { spec.exchange = ParseExchange(text); },
     [](const Reduce& spec) { return FieldOf(spec.exchange); }},
    {"group_size", "integer", &SetGroupSize, &GroupSizeOf},
    {"aps", "aps", &SetAps, &ApsOf},
    {"loss_scale", "number", &SetLossScale,
     [](const Reduce& spec) { return FieldOf(spec.loss_scale); }},
    {"average", "switch",
     [](Reduce& spec, std::string_view text) { spec.average = ParseSwitch("average", text); },
     [](const Reduce& spec) { return FieldOf(spec.average); }},
    {"divide", "word", [](Reduce& spec, std::string_view text) { spec.divide = ParseDivide(text); },
     [](const Reduce& spec) { return FieldOf(spec.divide); }},
    OfRounding<&RoundingOptions::mode>(
        "rounding", "word",
        [](Reduce& spec, std::string_view text) { spec.rounding.mode = ParseRounding(text); }),
    OfRounding<&RoundingOptions::overflow>(
        "overflow", "word",
        [](Reduce& spec, std::string_view text) { spec.rounding.overflow = ParseOverflow(text); }),
    OfRounding<&RoundingOptions::random_bits>("random_bits", "integer",
                                              [](Reduce& spec, std::string_view text) {
                                                spec.rounding.random_bits =
                                                    ParseInteger<int>("random_bits", text);
                                              }),
    OfRounding<&RoundingOptions::variant>(
        "variant", "word",
        [](Reduce& spec, std::string_view text) { spec.rounding.variant = ParseVariant(text); }),
    {"result", "format",
     [](Reduce& spec, std::string_view text) { spec.result = ParseFormat(text); },
     [](const Reduce& spec) { return FieldOf(spec.result); }},
}};

constexpr std::array<std::string_view, kKeys.size()> kKeyNames = [] {
  std::array<std::string_view, kKeys.size()> names;
  std::ranges::transform(kKeys, names.begin(), &ReduceKey::name);
  return names;
}();

const ReduceKey* FindKey(std::string_view name) {
  const auto* const found = std::ranges::find(kKeys, name, &ReduceKey::name);
  return found == kKeys.end() ? nullptr : found;
}

[[noreturn]] void RefuseKey(std::string_view name) {
  std::string known;
  for (const std::string_view one : kKeyNames) {
    known += (known.empty() ? "" : ", ") + std::string(one);
  }
  throw Error("an all-reduce has no key " + Quoted(name) + ": there are " + known +
              DidYouMean(name, kKeyNames));
}

// ---- what contributions become --------------------------------------------------------------

bool IsCompressor(std::string_view head) {
  const std::string_view name = head.substr(0, head.find(' '));
  return std::ranges::find(Compressors(), name, &CodecInfo::name) != Compressors().end();
}

/// The codec of a scaled format or a compressor; null for a format.
SharedCodec WireOf(std::string_view head, const RoundingOptions& rounding) {
  if (IsCompressor(head)) return MakeCodec(head, rounding);
  if (!NamesScaled(head)) return nullptr;
  return std::make_shared<ScaledBlocks>(ParseScaled(head), rounding);
}

/// The reduction of what contributions become, every key at its default; without its wire.
Reduce Usual(const std::string& head) {
  if (!IsCompressor(head) && !NamesScaled(head)) return Reduce(ParseFormat(head));
  Reduce spec;
  if (!IsCompressor(head)) spec.rounding.overflow = Overflow::saturate;
  return spec;
}

std::string HeadOf(const Reduce& spec) {
  return spec.wire == nullptr ? ToString(spec.format) : spec.wire->name();
}

bool NamesFormat(const std::string& text) {
  try {
    ParseFormat(text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Usual(head) and its wire. If the head is invalid, it may hold a misspelled key, which the error
/// then names.
Reduce ParseHead(const std::string& head) {
  try {
    Reduce spec = Usual(head);
    spec.wire = WireOf(head, spec.rounding);
    return spec;
  } catch (const Error& error) {
    std::vector<std::string> words = QuotedWords(head);
    const auto is_key = [](const std::string& word) { return IsOption(word); };
    const auto wrong =
        words.empty() ? words.end() : std::find_if(words.begin() + 1, words.end(), is_key);
    if (wrong != words.end()) {
      const std::string name = wrong->substr(0, wrong->find('='));
      if (NamesFormat(words[0]) || !Nearest(name, kKeyNames).empty()) RefuseKey(name);
    }
    if (std::string_view(error.what()).starts_with("unknown format")) {
      (void)MakeCodec(head);  // whose error names the compressors, too
    }
    throw;
  }
}

/// Throws Error for options of a cast that a compressor does not have.
void CheckCompressor(const Reduce& spec) {
  const Reduce usual;
  for (const std::string_view name : {"rounding", "overflow", "variant"}) {
    const FieldValue value = FindKey(name)->get(spec);
    if (value == FindKey(name)->get(usual)) continue;
    throw Error(std::string(name) + " is an option of a cast, which codec " +
                Quoted(spec.wire->name()) + " is not; got " + Quoted(std::get<std::string>(value)));
  }
}

// ---- texts ----------------------------------------------------------------------------------

/// A text in parts.
struct Parts {
  std::string head;
  std::map<const ReduceKey*, std::string> values;
};

Parts PartsOf(std::string_view text) {
  Parts parts;
  for (const std::string& word : QuotedWords(text)) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name == "seed" || name == "step") {
      throw Error("an all-reduce has no " + name +
                  ": give it to the call, cpd.simulate_all_reduce(…, " + name +
                  "=…), in place of " + Quoted(text));
    }
    const ReduceKey* const key = FindKey(name);
    if (key == nullptr) {
      parts.head += (parts.head.empty() ? "" : " ") + word;
      continue;
    }
    const bool is_switch = key->kind == "switch" || key->kind == "aps";
    if (equals == std::string::npos && !is_switch) {
      throw Error(name + " needs a value, as in " + name + "=…, in " + Quoted(text));
    }
    const std::string value = equals == std::string::npos ? "true" : word.substr(equals + 1);
    if (!parts.values.emplace(key, value).second) {
      throw Error(name + " is given twice in " + Quoted(text));
    }
  }
  return parts;
}

}  // namespace

Order ParseOrder(std::string_view name) { return ParseName<Order>("order", kOrders, name); }
std::string ToString(Order order) {
  return std::string(kOrders.at(static_cast<std::size_t>(order)));
}
Exchange ParseExchange(std::string_view name) {
  return ParseName<Exchange>("exchange", kExchanges, name);
}
std::string ToString(Exchange exchange) {
  return std::string(kExchanges.at(static_cast<std::size_t>(exchange)));
}
Divide ParseDivide(std::string_view name) { return ParseName<Divide>("divide", kDivides, name); }
std::string ToString(Divide divide) {
  return std::string(kDivides.at(static_cast<std::size_t>(divide)));
}

Reduce ParseReduce(std::string_view text, std::span<const Option> keys) {
  Parts parts = PartsOf(text);
  for (const auto& [name, value] : keys) {
    const ReduceKey* const key = FindKey(name);
    if (key == nullptr) RefuseKey(name);
    parts.values[key] = value;
  }
  Reduce spec = ParseHead(parts.head);
  for (const auto& [key, value] : parts.values) key->set(spec, value);
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

std::vector<Option> KeysOf(const Reduce& spec) {
  const Reduce usual = Usual(HeadOf(spec));
  std::vector<Option> keys;
  for (const ReduceKey& key : kKeys) {
    const FieldValue value = key.get(spec);
    if (value != key.get(usual)) keys.emplace_back(key.name, TextOf(value));
  }
  return keys;
}

std::string ToString(const Reduce& spec) {
  std::string text = HeadOf(spec);
  for (const auto& [name, value] : KeysOf(spec)) {
    text += value == "true" ? " " + name : Written(name, value);
  }
  return text;
}

Fields FieldsOf(const Reduce& spec) {
  const std::string head = HeadOf(spec);
  Fields fields{{"format", IsCompressor(head) ? FieldValue{} : FieldOf(head)},
                {"codec", FieldOf(head)}};
  for (const ReduceKey& key : kKeys) fields.emplace_back(key.name, key.get(spec));
  return fields;
}

std::vector<Option> ReduceKeys() {
  std::vector<Option> keys;
  for (const ReduceKey& key : kKeys) keys.emplace_back(key.name, key.kind);
  return keys;
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
    throw Error("aps chooses a scale of each tensor; codec '" + spec.wire->text() +
                "' has scales of its own");
  }
  const bool hops = spec.exchange == Exchange::ring || spec.exchange == Exchange::hierarchical;
  if (spec.wire != nullptr && !spec.wire->may_hop() && hops) {
    throw Error("exchange " + ToString(spec.exchange) +
                " hands partial sums on, for which codec '" + spec.wire->name() +
                "' has no bytes: take exchange owner or gather");
  }
  CheckName("order", kOrders, spec.order);
  CheckName("exchange", kExchanges, spec.exchange);
  CheckName("divide", kDivides, spec.divide);
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
