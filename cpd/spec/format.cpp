// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <utility>

#include "cpd/spec/error.h"
#include "cpd/spec/format_names.h"
#include "cpd/spec/names.h"
#include "cpd/spec/scaled.h"
#include "cpd/spec/wide_format.h"

namespace cpd {
namespace {

constexpr std::array<std::string_view, 9> kEncodings{
    "ieee", "fn", "fnuz", "p3109", "finite", "e8m0", "int", "int_full", "p3109finite"};

/// The IEEE formats that have their own names, and OCP's finite formats, whose names are plain
/// eXmY.
constexpr std::array<std::pair<std::string_view, Format>, 9> kNamed{{
    {"fp64", {.exp = 11, .man = 52, .bias = 1023}},
    {"fp32", kFp32},
    {"tf32", {.exp = 8, .man = 10, .bias = 127}},
    {"bf16", {.exp = 8, .man = 7, .bias = 127}},
    {"fp16", {.exp = 5, .man = 10, .bias = 15}},
    {"e2m1", {.exp = 2, .man = 1, .bias = 1, .encoding = Encoding::finite}},
    {"e2m3", {.exp = 2, .man = 3, .bias = 1, .encoding = Encoding::finite}},
    {"e3m2", {.exp = 3, .man = 2, .bias = 3, .encoding = Encoding::finite}},
    {"e8m0", kE8m0},
}};

int DefaultBias(int exp, int man, Encoding encoding) {
  if (is_integer(encoding)) return 1 - man;  // steps of 1
  const int half = 1 << (exp - 1);
  return encoding == Encoding::fnuz || Format{.encoding = encoding}.is_p3109() ? half : half - 1;
}

constexpr int kBeyond = 1'000'000'000;  ///< stands for all larger numbers

std::string Range(const char* what, int low, int high, int given) {
  const std::string shown = given >= kBeyond    ? "1000000000 or more"
                            : given <= -kBeyond ? "-1000000000 or less"
                                                : std::to_string(given);
  return std::string(what) + " must be " + std::to_string(low) + "…" + std::to_string(high) +
         ", got " + shown;
}

/// Reads a decimal integer of any length from the front of `text`, and removes it. A number beyond
/// ±kBeyond becomes ±kBeyond.
bool TakeInt(std::string_view& text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument) return false;
  if (error == std::errc::result_out_of_range) value = text[0] == '-' ? -kBeyond : kBeyond;
  value = std::clamp(value, -kBeyond, kBeyond);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}
bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Parses binaryKpP{se,sf,ue,uf} of IEEE P3109: man = P - 1; exp = K - P if signed, K - P + 1 if
/// unsigned.
std::optional<Format> ParseP3109(std::string_view text) {
  int k = 0;
  int p = 0;
  if (!TakePrefix(text, "binary") || !TakeInt(text, k) || !TakePrefix(text, "p") ||
      !TakeInt(text, p) || text.size() != 2) {
    return std::nullopt;
  }
  const bool is_signed = text[0] == 's';
  const bool extended = text[1] == 'e';
  if ((!is_signed && text[0] != 'u') || (!extended && text[1] != 'f')) return std::nullopt;
  const int exp = is_signed ? k - p : k - p + 1;
  if (exp < 1 || exp > 8 || p < 1) return std::nullopt;
  const Encoding encoding = extended ? Encoding::p3109 : Encoding::p3109finite;
  return MakeFormat(exp, p - 1, encoding, std::nullopt, is_signed);
}

/// Parses the integers of N bits: intN and intN:full in two's complement, and smN as sign and
/// magnitude. All have N - 1 bits of magnitude. Their exp is 1, so that all spacings are equal.
std::optional<Format> ParseInteger(std::string_view text) {
  int bits = 0;
  const bool has_sign_bit = TakePrefix(text, "sm");
  if (!has_sign_bit && !TakePrefix(text, "int")) return std::nullopt;
  if (!TakeInt(text, bits) || bits < 2 || bits > 25) return std::nullopt;
  const bool full = !has_sign_bit && TakePrefix(text, ":full");
  if (!text.empty()) return std::nullopt;
  const Encoding encoding = has_sign_bit ? Encoding::finite
                            : full       ? Encoding::int_full
                                         : Encoding::integer;
  return MakeFormat(1, bits - 2, encoding, 3 - bits);
}

/// Returns the name of a format that ParseInteger makes; empty for any other format.
std::string IntegerName(const Format& format) {
  const bool has_steps_of_1 = format.exp == 1 && format.bias == 1 - format.man;
  if (!has_steps_of_1 || !format.is_signed || !format.subnormals) return "";
  const std::string bits = std::to_string(format.bits());
  if (format.encoding == Encoding::finite) return "sm" + bits;
  if (!format.is_integer()) return "";
  return "int" + bits + (format.encoding == Encoding::int_full ? ":full" : "");
}

/// Reads the option at the front of `text` into `fields`, and removes it. Returns whether the
/// option is known.
bool TakeOption(std::string_view& text, FormatFields& fields) {
  const std::size_t end = std::min(text.find(':', 1), text.size());
  std::string_view one = text.substr(0, end);
  text.remove_prefix(end);
  int bias = 0;
  if (one == ":nosub") {
    return std::exchange(fields.subnormals, false);
  }
  if (one == ":unsigned") {
    return std::exchange(fields.is_signed, false);
  }
  if (fields.bias || !TakePrefix(one, ":bias=") || !TakeInt(one, bias) || !one.empty()) {
    return false;
  }
  fields.bias = bias;
  return true;
}

/// Reads the options after a name: `:bias=B`, `:nosub`, `:unsigned`, each at most once.
void TakeOptions(std::string_view text, std::string_view name, FormatFields& fields) {
  while (!text.empty()) {
    const std::string_view rest = text;
    if (TakeOption(text, fields)) continue;
    throw Error("format " + Quoted(name) + ": after its name there may be :bias=B, :nosub and " +
                ":unsigned, each once, got " + Quoted(rest.substr(0, rest.size() - text.size())));
  }
}

/// Reads the two numbers of a text such as `(4,3)`.
bool TakePair(std::string_view text, int& exp, int& man) {
  const auto skip = [&] {
    while (TakePrefix(text, " ")) {
    }
    return true;
  };
  return TakePrefix(text, "(") && skip() && TakeInt(text, exp) && skip() && TakePrefix(text, ",") &&
         skip() && TakeInt(text, man) && skip() && text == ")";
}

/// Reads a name without options: a named format, eXmY with the suffix of an encoding, or (X,Y) as
/// papers write it.
std::optional<FormatFields> ParseBase(std::string_view text) {
  for (const auto& [name, format] : kNamed) {
    if (name == text) {
      return FormatFields{.exp = format.exp, .man = format.man, .encoding = format.encoding};
    }
  }
  FormatFields base;
  if (TakePair(text, base.exp, base.man)) return base;
  if (!TakePrefix(text, "e") || !TakeInt(text, base.exp) || !TakePrefix(text, "m") ||
      !TakeInt(text, base.man)) {
    return std::nullopt;
  }
  if (text.empty()) return base;
  const auto* const found = std::ranges::find(kEncodings, text);
  if (text == "e8m0" || found == kEncodings.end()) return std::nullopt;
  base.encoding = static_cast<Encoding>(found - kEncodings.begin());
  return base;
}

/// Returns the name of a format without its options: a name such as fp16, or eXmY with the suffix
/// of the encoding.
std::string BaseName(const Format& format) {
  for (const auto& [name, named] : kNamed) {
    if (named.exp == format.exp && named.man == format.man && named.encoding == format.encoding) {
      return std::string(name);
    }
  }
  std::string plain = "e" + std::to_string(format.exp) + "m" + std::to_string(format.man);
  const auto read = ParseBase(plain);
  if (read && read->encoding == format.encoding) return plain;
  return plain + ToString(format.encoding);
}

/// Throws Error unless exp, man and bias are in the ranges of formats whose values are binary32
/// numbers.
void CheckWidths(int exp, int man, int bias) {
  const std::string wider =
      exp > 8 || man > 23
          ? "; formats of encoding ieee with exp up to " + std::to_string(kWidestExp) +
                " and man up to " + std::to_string(kWidestMan) +
                " are for cast, add, mul, fma, div and sqrt of float64 tensors"
          : "";
  if (exp < 1 || exp > 8) throw Error(Range("exp", 1, 8, exp) + wider);
  if (man < 0 || man > 23) throw Error(Range("man", 0, 23, man) + wider);
  if (bias < -255 || bias > 255) throw Error(Range("bias", -255, 255, bias));
}

/// Returns whether a format with this encoding, exp and man is a wide format: beyond binary32.
bool AreWide(int exp, int man, Encoding encoding) {
  return encoding == Encoding::ieee && (exp > 8 || man > 23) && exp >= 1 && man >= 0 &&
         exp <= kWidestExp && man <= kWidestMan;
}
constexpr int kWidestBias = 2047;
void CheckWideBias(int bias) {
  if (bias < -kWidestBias || bias > kWidestBias)
    throw Error(Range("bias", -kWidestBias, kWidestBias, bias));
}

[[noreturn]] void RefuseE8m0() {
  throw Error("e8m0 is exp = 8, man = 0, bias = 127, unsigned; nothing else");
}

/// Throws Error if the least spacing is below binary32's, or if the binade of the largest value or
/// of 2^emin is beyond binary32's range. 2^emin can be above the largest value (see MakeFormat).
void CheckRange(const Format& format) {
  const int man = format.man;
  if (format.min_quantum_exponent() < -149) {
    throw Error("bias " + std::to_string(format.bias) + " puts the least value at 2^" +
                std::to_string(format.min_quantum_exponent()) +
                ", below binary32's 2^-149; with man = " + std::to_string(man) +
                " the bias must be at most " + std::to_string(150 - man));
  }
  const int field = static_cast<int>(format.max_code() >> man);
  const int top = format.is_integer() ? format.emin() + 1  // the binade of the least code
                  : format.has_zero() ? (field == 0 ? 0 : field - 1) + format.emin()
                                      : field - format.bias;
  if (top > 127 || format.emin() > 127) {
    throw Error("bias " + std::to_string(format.bias) + " puts values at 2^" +
                std::to_string(std::max(top, format.emin())) +
                " and above, beyond binary32's largest power of two, 2^127");
  }
}

/// Throws Error as CheckRange does, but for a wide format, whose values must be in binary64's
/// range.
void CheckWideRange(const Format& format) {
  const std::string bias = "bias " + std::to_string(format.bias);
  if (format.min_quantum_exponent() < -1074) {
    throw Error(bias + " puts the least value at 2^" +
                std::to_string(format.min_quantum_exponent()) + ", below binary64's 2^-1074");
  }
  const int top = std::max(static_cast<int>(max_code_of(format) >> format.man) - 1, 0);
  if (top + format.emin() > 1023) {
    throw Error(bias + " puts values at 2^" + std::to_string(top + format.emin()) +
                " and above, beyond binary64's largest power of two, 2^1023");
  }
}

bool IsScaled(std::string_view text) {
  if (!NamesScaled(text)) return false;
  try {
    (void)ParseScaled(text);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// Returns log2 of the distance between the numbers of [2^e, 2^(e + 1)).
int SpacingExponent(const Format& format, int e) { return std::max(e, format.emin()) - format.man; }

/// Returns the exponent of the greatest power of two that is at most the least positive value.
int LeastExponent(const Format& format) {
  const bool grid_goes_on = format.subnormals && format.has_zero();
  return grid_goes_on ? format.min_quantum_exponent() : format.emin();
}

/// Returns whether the largest value is a power of two and the only value of its binade.
bool TopIsAlone(const Format& format) {
  const std::uint32_t code = format.max_code();
  if (code < format.min_normal_code()) return std::has_single_bit(code);
  return (code & ((1U << format.man) - 1)) == 0;
}

}  // namespace

Format MakeFormat(int exp, int man, Encoding encoding, std::optional<int> bias, bool is_signed,
                  bool subnormals) {
  if (encoding == Encoding::e8m0) {
    if (exp != 8 || man != 0 || bias.value_or(127) != 127 || is_signed || !subnormals) {
      RefuseE8m0();
    }
    return kE8m0;
  }
  if (AreWide(exp, man, encoding)) {
    CheckWideBias(bias.value_or(0));
  } else {
    CheckWidths(exp, man, bias.value_or(0));
  }
  const int chosen = bias.value_or(DefaultBias(exp, man, encoding));
  const Format format{.exp = static_cast<std::uint8_t>(exp),
                      .man = static_cast<std::uint8_t>(man),
                      .bias = static_cast<std::int16_t>(chosen),
                      .encoding = encoding,
                      .is_signed = is_signed,
                      .subnormals = subnormals};
  CheckOfElements(format);
  return format;
}

void CheckOfElements(const Format& format) {
  if (!AreWide(format.exp, format.man, format.encoding)) return Check(format);
  CheckWideBias(format.bias);
  CheckWideRange(format);
}

void Check(const Format& format) {
  if (format.encoding == Encoding::e8m0) {
    if (format != kE8m0) RefuseE8m0();
    return;
  }
  CheckWidths(format.exp, format.man, format.bias);
  if (static_cast<std::size_t>(format.encoding) >= kEncodings.size()) {
    throw Error("encoding must be one of the " + std::to_string(kEncodings.size()) +
                " that Encoding names, got number " +
                std::to_string(static_cast<int>(format.encoding)));
  }
  if (format.encoding == Encoding::fnuz && !format.is_signed) {
    throw Error("fnuz is signed: its NaN is the code of -0");
  }
  if (format.is_integer() && (format.exp != 1 || !format.is_signed || !format.subnormals)) {
    throw Error("encoding " + ToString(format.encoding) +
                " must have exp = 1, signs and subnormals (its step is 2^(1 - bias - man)), got "
                "exp = " +
                std::to_string(format.exp) + (format.is_signed ? "" : ", unsigned") +
                (format.subnormals ? "" : ", without subnormals"));
  }
  if (format.encoding == Encoding::p3109 && !format.is_signed && format.magnitude_bits() < 2) {
    throw Error("unsigned p3109 needs exp + man >= 2, got 1: no code is left for zero");
  }
  CheckRange(format);
}

Format MakeFormat(const FormatFields& f) {
  return MakeFormat(f.exp, f.man, f.encoding, f.bias, f.is_signed, f.subnormals);
}

FormatFields FormatFieldsOf(const Format& f) {
  FormatFields fields{.exp = f.exp,
                      .man = f.man,
                      .encoding = f.encoding,
                      .is_signed = f.is_signed,
                      .subnormals = f.subnormals};
  if (f != kE8m0 && f.bias != DefaultBias(f.exp, f.man, f.encoding)) fields.bias = f.bias;
  return fields;
}

Format ParseFormat(std::string_view name) {
  if (const auto format = FindFormat(name)) return *format;
  if (IsScaled(name)) {
    throw Error(Quoted(name) +
                " is a scaled format (cpd.Scaled); here one without scales is needed");
  }
  throw Error(NoSuchFormat(name));
}

std::optional<Format> FindFormat(std::string_view name) {
  std::string text = Lower(name);
  const std::string_view own = OwnNameOf(std::string_view(text).substr(0, text.find(':')));
  if (!own.empty()) text.replace(0, text.find(':'), own);
  if (const auto format = ParseP3109(text)) return format;
  if (const auto format = ParseInteger(text)) return format;
  const std::string_view whole = text;
  const std::size_t colon = std::min(whole.find(':'), whole.size());
  auto base = ParseBase(whole.substr(0, colon));
  if (!base) return std::nullopt;
  TakeOptions(whole.substr(colon), name, *base);
  if (base->encoding == Encoding::e8m0) base->is_signed = false;
  return MakeFormat(*base);
}

std::string ToString(const Format& format) {
  CheckOfElements(format);
  if (format == kE8m0) return "e8m0";
  if (const std::string name = IntegerName(format); !name.empty()) return name;
  const bool default_bias = format.bias == DefaultBias(format.exp, format.man, format.encoding);
  if (format.is_p3109() && default_bias && format.subnormals) {
    return "binary" + std::to_string(format.bits()) + "p" + std::to_string(format.man + 1) +
           (format.is_signed ? "s" : "u") + (format.has_inf() ? "e" : "f");
  }
  std::string name = BaseName(format);
  if (!default_bias) name += ":bias=" + std::to_string(format.bias);
  if (!format.subnormals) name += ":nosub";
  if (!format.is_signed) name += ":unsigned";
  return name;
}

std::span<const std::string_view> NamesOf(Encoding /*encoding*/) { return kEncodings; }

bool Holds(const Format& outer, const Format& inner) {
  Check(outer);
  Check(inner);
  if (outer == kFp32) return true;
  if (inner.has_zero() && !outer.has_zero()) return false;
  if (inner.has_inf() && !outer.has_inf()) return false;
  if (inner.max() == 0) return true;
  if (inner.max() > outer.max() || (inner.is_signed && !outer.is_signed)) return false;
  if (inner.lowest() < outer.lowest()) return false;
  if (LeastExponent(inner) < LeastExponent(outer)) return false;
  // Below emin, a format's spacing is constant; above emin, the spacing doubles in each binade. So
  // comparing the spacings of `inner` and `outer` in these binades decides for all binades below
  // the top one.
  const int top = inner.emax();
  for (const int e : {LeastExponent(inner), inner.emin(), outer.emin(), top - 1}) {
    if (e < LeastExponent(inner) || e >= top) continue;
    if (SpacingExponent(inner, e) < SpacingExponent(outer, e)) return false;
  }
  const int needed = TopIsAlone(inner) ? top : SpacingExponent(inner, top);
  return needed >= SpacingExponent(outer, top);
}

}  // namespace cpd
