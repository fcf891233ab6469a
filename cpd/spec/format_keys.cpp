// SPDX-License-Identifier: Apache-2.0
//
// The keys of a format, and the numbers that are computed from them, such as max and epsilon.
#include <array>

#include "cpd/spec/format_names.h"
#include "cpd/spec/keys.h"
#include "cpd/spec/wide_format.h"

namespace cpd {
namespace {

using FormatKey = Key<FormatFields>;

/// Returns the row of the table of keys for a number, such as max, that is computed from a format's
/// fields.
template <auto number>
constexpr FormatKey Derived(std::string_view name, std::string_view kind) {
  return {name, kind, nullptr,
          [](const FormatFields& fields) { return FieldOf(number(MakeFormat(fields))); }};
}

/// Returns `number`; none if it is 0. Functions of formats return 0 if a format has no such number.
std::optional<double> Positive(double number) {
  return number > 0 ? std::optional(number) : std::nullopt;
}

double LowestOf(const Format& format) {
  return format.is_signed ? -magnitude_of(format, lowest_code_of(format)) : magnitude_of(format, 0);
}

constexpr std::array<FormatKey, 14> kFormatKeys{{
    KeyOf<"exp", &FormatFields::exp>(),
    KeyOf<"man", &FormatFields::man>(),
    {"bias", "integer",
     [](FormatFields& fields, std::string_view text) { Read(fields.bias, "bias", text); },
     [](const FormatFields& fields) { return FieldOf(MakeFormat(fields).bias); }},
    KeyOf<"encoding", &FormatFields::encoding>(),
    KeyOf<"signed", &FormatFields::is_signed>(),
    KeyOf<"subnormals", &FormatFields::subnormals>(),
    Derived<[](const Format& format) { return ToString(format); }>("name", "word"),
    Derived<[](const Format& format) { return format.bits(); }>("bits", "integer"),
    Derived<max_of>("max", "number"),
    Derived<LowestOf>("lowest", "number"),
    Derived<[](const Format& format) { return Positive(min_normal_of(format)); }>("min_normal",
                                                                                  "number"),
    Derived<[](const Format& format) { return Positive(min_subnormal_of(format)); }>(
        "min_subnormal", "number"),
    Derived<[](const Format& format) { return format.epsilon(); }>("epsilon", "number"),
    Derived<num_values_of>("num_values", "integer"),
}};

}  // namespace

template <>
Keys<FormatFields> KeysOf<FormatFields>() {
  return {"a format", kFormatKeys};
}

Fields FieldsOf(const Format& format) { return FieldsOf(FormatFieldsOf(format)); }

template <>
Format Make<Format>(std::string_view name, std::span<const Option> keys) {
  const bool is_whole = ValueOf(keys, "exp") != nullptr && ValueOf(keys, "man") != nullptr;
  FormatFields fields;
  if (!name.empty() || !is_whole) fields = FormatFieldsOf(ParseFormat(name));
  SetKeys(KeysOf<FormatFields>(), keys, fields);
  return MakeFormat(fields);
}

}  // namespace cpd
