// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/cast_spec.h"

#include "cpd/spec/options.h"

namespace cpd {

std::string ToString(const CastSpec& cast) {
  std::string text = ToString(cast.format);
  PutMode(text, cast.rounding);
  PutRandomBits(text, cast.rounding);
  PutVariant(text, cast.rounding);
  return text;
}

CastSpec ParseCastSpec(std::string_view text) {
  std::vector<std::string_view> words = Words(text);
  CastSpec cast;
  cast.format = ParseFormat(words.empty() ? "" : words[0]);
  if (!words.empty()) words.erase(words.begin());
  ParseOptions(words, "a cast", [&](std::string_view name, std::string_view value) {
    if (ParseRoundingOption(cast.rounding, name, value)) return;
    throw Error("unknown option " + Quoted(name) +
                " of a cast; there are rounding, overflow, random_bits and variant");
  });
  Check(cast.rounding);
  CheckDraws(cast.rounding);
  return cast;
}

Fields FieldsOf(const CastSpec& cast) {
  Fields fields{{"format", FieldOf(cast.format)}};
  PutFields(fields, cast.rounding);
  return fields;
}

}  // namespace cpd
