// SPDX-License-Identifier: Apache-2.0
//
// The names and texts of scaled formats.
#include "cpd/spec/scaled.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <utility>

#include "cpd/spec/axis.h"
#include "cpd/spec/format_names.h"
#include "cpd/spec/keys.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"

namespace cpd {
namespace {

using Kind = BlockShape::Kind;

constexpr std::array<std::string_view, 7> kRules{"floor", "ceil",     "rceil", "even",
                                                 "max",   "max_pow2", "up"};
constexpr std::array<std::string_view, 5> kArithmetics{"exact", "te", "torchao", "deepgemm",
                                                       "microxcaling"};
constexpr std::array<std::string_view, 2> kNonFinites{"block", "element"};
constexpr std::array<std::string_view, 3> kChoices{"none", "mae", "mse"};
constexpr std::array<std::string_view, 3> kKinds{"tensor", "row", "tile"};
constexpr Format kE5m2{.exp = 5, .man = 2, .bias = 15};
constexpr Format kE3m2{.exp = 3, .man = 2, .bias = 3, .encoding = Encoding::finite};
constexpr Format kE2m3{.exp = 2, .man = 3, .bias = 1, .encoding = Encoding::finite};
/// The int8 element of OCP MX 1.0: multiples of 2^-6 up to ±127/64. Section 5.3.4 lets
/// implementations decide whether to use -2; here, no rounding gives -2.
constexpr Format kMxInt8{.exp = 1, .man = 6, .bias = 1, .encoding = Encoding::integer};
constexpr int kMostIntegerBits = 25;

Scaled Mx(const Format& element) { return {.element = element}; }
Scaled Fp8(BlockShape block, Arithmetic arithmetic = Arithmetic::exact) {
  return {.element = kE4m3fn,
          .block = block,
          .scale = kFp32,
          .rule = ScaleRule::max,
          .arithmetic = arithmetic,
          .non_finite = DefaultNonFinite(arithmetic)};
}

struct Named {
  std::string_view name;
  Scaled scaled;
  std::string_view summary, source, evidence = "library";
};

constexpr std::string_view kMxSource = "OCP Microscaling formats (MX) 1.0";
constexpr std::string_view kTeSource = "NVIDIA TransformerEngine";
constexpr std::string_view kDeepGemm = "DeepSeek DeepGEMM; arXiv 2412.19437, section 3.3";
constexpr std::string_view kStandard = "standard";

/// The scaled formats that have a name.
const std::vector<Named>& NamedScaled() {
  static const std::vector<Named> all{
      {"mxfp8", Mx(kE4m3fn), "32 values of e4m3fn share a power of two", kMxSource, kStandard},
      {"mxfp8-e5m2", Mx(kE5m2), "32 values of e5m2 share a power of two", kMxSource, kStandard},
      {"mxfp6-e3m2", Mx(kE3m2), "32 values of e3m2 share a power of two", kMxSource, kStandard},
      {"mxfp6-e2m3", Mx(kE2m3), "32 values of e2m3 share a power of two", kMxSource, kStandard},
      {"mxfp4", Mx(kE2m1), "32 values of e2m1 share a power of two", kMxSource, kStandard},
      {"mxint8", Mx(kMxInt8), "32 steps of 2^-6 share a power of two", kMxSource, kStandard},
      {"nvfp4",
       {.element = kE2m1,
        .block = {.columns = 16},
        .scale = kE4m3fn,
        .rule = ScaleRule::max,
        .tensor_scale = kFp32,
        .arithmetic = Arithmetic::te,
        .non_finite = NonFinite::element},
       "16 values of e2m1 share a scale in e4m3fn, under a tensor's in fp32",
       kTeSource},
      {"fp8-tensor", Fp8({.kind = Kind::tensor}), "a tensor of e4m3fn has one scale in fp32",
       kTeSource},
      {"fp8-row", Fp8({.kind = Kind::row}), "each row of e4m3fn has a scale in fp32", "torchao"},
      {"fp8-block", Fp8({.columns = 128}, Arithmetic::deepgemm),
       "128 values of e4m3fn share a scale in fp32", kDeepGemm},
  };
  return all;
}

/// Returns N of intN, smN or bfpN; 0 for other names.
int IntegerBits(std::string_view name, std::string_view prefix) {
  int bits = 0;
  if (!name.starts_with(prefix)) return 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, bits);
  return error == std::errc() && rest == end && bits >= 2 && bits <= kMostIntegerBits ? bits : 0;
}

/// Returns whether the name of an element is intN, intN:full or smN.
bool IsIntegerName(std::string_view name) {
  const std::string_view plain = name.substr(0, name.find(":full"));
  return IntegerBits(plain, "int") != 0 || IntegerBits(plain, "sm") != 0;
}

Scaled Bfp(int bits) {
  return {.element = ParseFormat("sm" + std::to_string(bits)), .block = {.columns = 16}};
}
Scaled IntegerRows(std::string_view name) {
  return {.element = ParseFormat(name),
          .block = {.kind = Kind::row},
          .scale = kFp32,
          .rule = ScaleRule::max};
}

std::optional<Scaled> FindNamed(std::string_view name) {
  for (const Named& one : NamedScaled()) {
    if (one.name == name) return one.scaled;
  }
  if (const int bits = IntegerBits(name, "bfp")) return Bfp(bits);
  return std::nullopt;
}

/// Parses the first word of a text: the name of a scaled format, an integer format (whose blocks
/// are rows with fp32 scales), or the format of the elements.
Scaled Head(std::string_view word) {
  const std::string name = Lower(word);
  if (const auto named = FindNamed(name)) return *named;
  if (IsIntegerName(name)) return IntegerRows(name);
  return {.element = ParseFormat(word)};
}

// ---- keys -----------------------------------------------------------------------------------

void SetElement(Scaled& scaled, std::string_view text) { scaled.element = ParseUnambiguous(text); }
FieldValue ElementOf(const Scaled& scaled) {
  return FieldOf(Unambiguous(ToString(scaled.element)));
}

void SetScale(Scaled& scaled, std::string_view text) {
  scaled.scale = ParseFormat(text);
  scaled.rule = DefaultRule(scaled.scale);
}

void SetRule(Scaled& scaled, std::string_view text) {
  scaled.rule = text == "nearest" ? ScaleRule::max : ParseName<ScaleRule>("rule", text);
}

void SetOuter(Scaled& scaled, std::string_view text) {
  scaled.outer = ParseName<Kind>("outer", std::span(kKinds).first(2), text);
}

void SetArithmetic(Scaled& scaled, std::string_view text) {
  scaled.arithmetic = ParseName<Arithmetic>("arithmetic", text);
  scaled.non_finite = DefaultNonFinite(scaled.arithmetic);
}

void SetScaleMax(Scaled& scaled, std::string_view text) {
  scaled.scale_max = 0;
  if (text == "none") return;
  Read(scaled.scale_max, "scale_max", text);
  if (!(scaled.scale_max > 0)) throw Error("scale_max must be positive, got " + Quoted(text));
}
FieldValue ScaleMaxOf(const Scaled& scaled) {
  return scaled.scale_max > 0 ? FieldOf(scaled.scale_max) : FieldValue{};
}

void SetTransform(Scaled& scaled, std::string_view text) {
  scaled.transform.reset();
  if (text != "none") scaled.transform = ParseHadamard(text);
}

/// The order of the keys matters, because a key may set the default of a later key: `scale` sets
/// the default of `rule`, and `arithmetic` the default of `non_finite`.
constexpr std::array<Key<Scaled>, 12> kScaledKeys{{
    {"element", "element", &SetElement, &ElementOf},
    {"block", "block",
     [](Scaled& scaled, std::string_view text) { scaled.block = ParseBlockShape(text); },
     [](const Scaled& scaled) { return FieldOf(scaled.block); }},
    {"scale", "format", &SetScale, [](const Scaled& scaled) { return FieldOf(scaled.scale); }},
    {"rule", "word", &SetRule, [](const Scaled& scaled) { return FieldOf(scaled.rule); }},
    KeyOf<"tensor_scale", &Scaled::tensor_scale>(),
    {"outer", "word", &SetOuter,
     [](const Scaled& scaled) { return FieldOf(BlockShape{.kind = scaled.outer}); }},
    {"scale_max", "number", &SetScaleMax, &ScaleMaxOf},
    {"arithmetic", "word", &SetArithmetic,
     [](const Scaled& scaled) { return FieldOf(scaled.arithmetic); }},
    KeyOf<"non_finite", &Scaled::non_finite>(),
    KeyOf<"choose", &Scaled::choose>(),
    KeyOf<"margin", &Scaled::margin>(),
    {"transform", "transform", &SetTransform,
     [](const Scaled& scaled) { return FieldOf(scaled.transform); }},
}};

/// Returns the canonical text of `scaled`: `head`, then the block and the keys in which `scaled`
/// differs from `base`, the scaled format that `head` alone stands for.
std::string TextFrom(std::string head, Scaled base, const Scaled& scaled) {
  const std::span<const Key<Scaled>> rows(kScaledKeys);
  head += TextOfKeys({{}, rows.first(1)}, scaled, base);
  if (base.block != scaled.block) head += " " + ToString(scaled.block);
  return head + TextOfKeys({{}, rows.subspan(2)}, scaled, base);
}

std::string AllNames() {
  std::string names;
  for (const Named& one : NamedScaled()) names += std::string(one.name) + ", ";
  return names + "bfp8, or an element format and its block, as in 'int8 row' or 'e4m3fn 1x128'";
}

void CheckShape(const BlockShape& block) {
  if (static_cast<std::size_t>(block.kind) >= kKinds.size()) {
    throw Error("block must be a tensor, a row or a tile, got number " +
                std::to_string(static_cast<int>(block.kind)));
  }
  if (block.kind == Kind::tile && (block.rows < 1 || block.columns < 1)) {
    throw Error("a block must be at least 1x1, got " + std::to_string(block.rows) + "x" +
                std::to_string(block.columns));
  }
}

/// Throws Error unless an arithmetic supports the format and the rule (scale_rules.h).
void CheckArithmetic(const Scaled& scaled) {
  const auto refuse = [&](const std::string& wanted) {
    throw Error("arithmetic " + ToString(scaled.arithmetic) + " has " + wanted + ", got scale " +
                ToString(scaled.scale) + (scaled.tensor_scale ? " under a tensor scale" : "") +
                " with rule " + ToString(scaled.rule));
  };
  const bool e8m0 = scaled.scale == kE8m0;
  const bool fp32 = scaled.scale == kFp32;
  const bool by_max = scaled.rule == ScaleRule::max;
  const bool to_power = scaled.rule == ScaleRule::max_pow2;
  const bool goes_up = to_power || scaled.rule == ScaleRule::rceil || scaled.rule == ScaleRule::up;
  switch (scaled.arithmetic) {
    case Arithmetic::exact:
      return;
    case Arithmetic::te:
      if (scaled.tensor_scale) {
        if (*scaled.tensor_scale != kFp32 || !by_max) {
          refuse("two levels with tensor_scale fp32 and rule max");
        }
      } else if (!(fp32 && (by_max || to_power)) && !(e8m0 && !by_max)) {
        refuse("one level in fp32 with rule max or max_pow2, or in e8m0, and two levels");
      }
      return;
    case Arithmetic::torchao:
      if (scaled.tensor_scale) {
        if (*scaled.tensor_scale != kFp32 || !by_max) {
          refuse("two levels with tensor_scale fp32 and rule max");
        }
      } else if (!(fp32 && to_power) && !(!e8m0 && by_max) &&
                 !(e8m0 && scaled.rule <= ScaleRule::even)) {
        refuse("rules max (max_pow2 in fp32), and floor, ceil, rceil and even in e8m0");
      }
      return;
    case Arithmetic::deepgemm:
      if (scaled.tensor_scale || !((fp32 && by_max) || ((fp32 || e8m0) && goes_up))) {
        refuse("one level in fp32 with rule max, or in fp32 or e8m0 rounded up: rule rceil");
      }
      return;
    case Arithmetic::microxcaling:
      if (scaled.tensor_scale || !e8m0 || scaled.rule != ScaleRule::floor) {
        refuse("one level in e8m0 with rule floor");
      }
      return;
  }
}

void CheckChoose(const Scaled& scaled) {
  if (scaled.choose == ScaleChoice::none) return;
  if (scaled.rule != ScaleRule::max || scaled.scale.man == 0 ||
      (scaled.arithmetic != Arithmetic::exact && scaled.arithmetic != Arithmetic::te) ||
      (scaled.arithmetic == Arithmetic::te && !scaled.tensor_scale)) {
    throw Error(
        "choose is for rule max with exact arithmetic, or te's with two levels, and a "
        "scale that is no power of two");
  }
  if (scaled.block.kind != Kind::tile) throw Error("choose is for blocks, not rows or tensors");
}

}  // namespace

ScaleRule DefaultRule(const Format& scale) {
  return scale == kE8m0 ? ScaleRule::floor : ScaleRule::max;
}
NonFinite DefaultNonFinite(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::te ? NonFinite::element : NonFinite::block;
}

void Check(const Scaled& scaled) {
  Check(scaled.element);
  Check(scaled.scale);
  CheckShape(scaled.block);
  if (scaled.transform) Check(*scaled.transform);
  CheckName("rule", scaled.rule);
  CheckName("arithmetic", scaled.arithmetic);
  CheckName("non_finite", scaled.non_finite);
  CheckName("choose", scaled.choose);
  if (!(scaled.element.max() > 0) || !scaled.element.has_zero()) {
    throw Error("elements must have zero and a positive value, got " + ToString(scaled.element));
  }
  if (!(scaled.scale.max() > 0)) {
    throw Error("a scale must have a positive value, got " + ToString(scaled.scale));
  }
  if (scaled.margin < -64 || scaled.margin > 64) {
    throw Error("margin must be -64…64, got " + std::to_string(scaled.margin));
  }
  CheckName("outer", std::span<const std::string_view>(kKinds).first(2), scaled.outer);
  if (!scaled.tensor_scale) {
    if (scaled.scale_max != 0 || scaled.outer != Kind::tensor) {
      throw Error("scale_max and outer are for two levels: give tensor_scale");
    }
  } else {
    Check(*scaled.tensor_scale);
    if (!(scaled.tensor_scale->max() > 0)) {
      throw Error("a scale must have a positive value, got " + ToString(*scaled.tensor_scale));
    }
    if (scaled.block.kind == Kind::tensor || scaled.block.kind == scaled.outer) {
      throw Error("under a tensor_scale blocks must be smaller than its " +
                  std::string(kKinds.at(static_cast<int>(scaled.outer))));
    }
    if (scaled.outer == Kind::row && scaled.block.rows != 1) {
      throw Error("under outer=row a block lies in one row, got " + ToString(scaled.block));
    }
    const int bits =
        scaled.element.precision() + scaled.scale.precision() + scaled.tensor_scale->precision();
    if (bits > 53) {
      throw Error(
          "element, scale and tensor_scale must have at most 53 significant bits together, "
          "got " +
          std::to_string(bits));
    }
    if (!(scaled.scale_max >= 0) || scaled.scale_max > scaled.scale.max()) {
      throw Error("scale_max must be positive and at most " + ToString(scaled.scale) + "'s max");
    }
  }
  if (scaled.margin != 0 && scaled.arithmetic != Arithmetic::exact &&
      (scaled.arithmetic != Arithmetic::te || scaled.tensor_scale)) {
    throw Error("margin is for exact arithmetic, and te's with one level");
  }
  CheckArithmetic(scaled);
  CheckChoose(scaled);
}

std::vector<std::int64_t> ScaleGrid(const BlockShape& block, std::span<const std::int64_t> shape,
                                    int axis) {
  CheckShape(block);
  if (block.kind == Kind::tensor) return {};
  std::vector<std::int64_t> grid(shape.begin(), shape.end());
  if (grid.empty()) return grid;  // one value is one block
  const int rank = static_cast<int>(grid.size());
  const int along = ResolveAxis(axis, rank);
  if (block.kind == Kind::row) {
    grid[along] = grid[along] == 0 ? 0 : 1;
    return grid;
  }
  grid[along] = grid[along] / block.columns + (grid[along] % block.columns != 0);
  const int other = along == rank - 1 ? rank - 2 : rank - 1;
  if (other >= 0) grid[other] = grid[other] / block.rows + (grid[other] % block.rows != 0);
  return grid;
}

std::span<const std::string_view> NamesOf(ScaleRule /*rule*/) { return kRules; }
std::span<const std::string_view> NamesOf(Arithmetic /*arithmetic*/) { return kArithmetics; }
std::span<const std::string_view> NamesOf(NonFinite /*non_finite*/) { return kNonFinites; }
std::span<const std::string_view> NamesOf(ScaleChoice /*choose*/) { return kChoices; }

template <>
Keys<Scaled> KeysOf<Scaled>() {
  return {"a scaled format", kScaledKeys};
}

bool IsBlockWord(std::string_view word) {
  return word == "tensor" || word == "row" || (!word.empty() && word[0] >= '0' && word[0] <= '9');
}

BlockShape ParseBlockShape(std::string_view text) {
  if (text == "tensor") return {.kind = Kind::tensor};
  if (text == "row") return {.kind = Kind::row};
  BlockShape block;
  const std::size_t times = std::min(text.find('x'), text.size());
  const auto number = [&](std::string_view digits, std::int64_t& value) {
    const char* end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, value);
    return error == std::errc() && rest == end;
  };
  const bool is_shape = times < text.size();
  if (is_shape ? !number(text.substr(0, times), block.rows) ||
                     !number(text.substr(times + 1), block.columns)
               : !number(text, block.columns)) {
    throw Error("a block must be tensor, row, a number as 32 or a shape as 128x128, got " +
                Quoted(text));
  }
  CheckShape(block);
  return block;
}

std::string ToString(const BlockShape& block) {
  CheckShape(block);
  if (block.kind != Kind::tile) return std::string(kKinds.at(static_cast<int>(block.kind)));
  const std::string columns = std::to_string(block.columns);
  return block.rows == 1 ? columns : std::to_string(block.rows) + "x" + columns;
}

bool NamesScaled(std::string_view text) {
  const auto words = WordsOf(text);
  return words.size() > 1 || (words.size() == 1 && FindNamed(Lower(words[0])));
}

Scaled ParseScaled(std::string_view text) { return Make<Scaled>(text, {}); }

template <>
Scaled Make<Scaled>(std::string_view text, std::span<const Option> keys) {
  std::vector<std::string> words = WordsOf(text);
  if (words.empty() && ValueOf(keys, "element") != nullptr) {
    Scaled scaled;
    SetKeys(KeysOf<Scaled>(), keys, scaled);
    Check(scaled);
    return scaled;
  }
  if (words.empty()) throw Error("a scaled format is " + AllNames() + "; got an empty text");
  const std::string head = words[0];
  Scaled scaled = Head(head);
  words.erase(words.begin());
  if (words.empty() && keys.empty() && !FindNamed(Lower(head))) {
    throw Error(Quoted(head) + " is a format without scales; a scaled one is " + AllNames());
  }
  if (!words.empty() && IsBlockWord(words[0]) && !IsOption(words[0])) {
    scaled.block = ParseBlockShape(words[0]);
    words.erase(words.begin());
  }
  SetKeys(KeysOf<Scaled>(), Merged(OptionsOf(words, "a scaled format"), keys), scaled);
  Check(scaled);
  if (Lower(head) == "e4m3") throw Error(std::string(kE4m3IsAmbiguous));
  return scaled;
}

std::string ToString(const Scaled& scaled) {
  Check(scaled);
  std::string best;
  const auto offer = [&](const std::string& head, const Scaled& base) {
    const std::string text = TextFrom(head, base, scaled);
    if (best.empty() || text.size() < best.size()) best = text;
  };
  for (const auto& [name, base, summary, source, evidence] : NamedScaled()) {
    if (base == scaled) return std::string(name);
    const bool is_its_kind = base.element == scaled.element && base.scale == scaled.scale &&
                             base.tensor_scale == scaled.tensor_scale &&
                             base.block.kind == scaled.block.kind;
    if (is_its_kind) offer(std::string(name), base);
  }
  const std::string element = Unambiguous(ToString(scaled.element));
  if (const int bits = IntegerBits(element, "sm")) offer("bfp" + std::to_string(bits), Bfp(bits));
  if (IsIntegerName(element)) {
    Scaled rows = IntegerRows(element);
    rows.block = scaled.block;
    offer(element + " " + ToString(scaled.block), rows);
  } else {
    const Scaled plain{.element = scaled.element, .block = scaled.block};
    offer(element + " " + ToString(scaled.block), plain);
  }
  return best;
}

double BitsPerValue(const Scaled& scaled, std::span<const std::int64_t> shape, int axis) {
  Check(scaled);
  const auto count = [](std::span<const std::int64_t> extents) {
    double n = 1;
    for (const std::int64_t each : extents) n *= static_cast<double>(each);
    return n;
  };
  const double n = count(shape);
  if (n == 0) return scaled.element.bits();
  double bits =
      n * scaled.element.bits() + count(ScaleGrid(scaled.block, shape, axis)) * scaled.scale.bits();
  if (scaled.tensor_scale) {
    bits += count(ScaleGrid({.kind = scaled.outer}, shape, axis)) * scaled.tensor_scale->bits();
  }
  return bits / n;
}

std::vector<NamedSpec> NamedScaledFormats() {
  std::vector<NamedSpec> all;
  for (const Named& one : NamedScaled()) {
    all.push_back({.name = std::string(one.name),
                   .summary = std::string(one.summary),
                   .source = std::string(one.source),
                   .evidence = std::string(one.evidence)});
  }
  return all;
}

}  // namespace cpd
