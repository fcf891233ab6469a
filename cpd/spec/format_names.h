// SPDX-License-Identifier: Apache-2.0
//
// The names of formats in other libraries. Libraries may use one word, such as e4m3, for different
// formats. Each full name here stands for the type that has exactly this full name in some library.
// So `float8_e4m3` is ml_dtypes' IEEE-like e4m3 (max 240), and `float8_e4m3fn` is OCP's (max 448).
// `float4_e2m1fn`, `float6_e2m3fn` and `float6_e3m2fn` are OCP's finite formats, though `fn` on a
// bare name is the encoding with a NaN.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/spec/fields.h"
#include "cpd/spec/format.h"
#include "cpd/spec/names.h"

namespace cpd {

/// The fields of a format as a caller passes them: numbers of any size, and a bias only if it
/// differs from the default for the other fields. MakeFormat checks the fields.
struct FormatFields {
  int exp = 0, man = 0;
  std::optional<int> bias{};
  Encoding encoding = Encoding::ieee;
  bool is_signed = true, subnormals = true;
};
CPD_API Format MakeFormat(const FormatFields& fields);
CPD_API FormatFields FormatFieldsOf(const Format& format);

/// Makes a format from the name of a format and keys that replace its fields. The name may be empty
/// if `exp` and `man` are among the keys.
template <>
CPD_API Format Make<Format>(std::string_view name, std::span<const Option> keys);
/// The keys of a format: the fields that a front end passes, then the numbers that are computed
/// from these fields.
template <>
CPD_API Keys<FormatFields> KeysOf<FormatFields>();
CPD_API Fields FieldsOf(const Format& format);

/// Returns the format whose name is `name`, in any letter case; nullopt if `name` is not the name
/// of a format. Throws Error for a name with numbers or options that no format has.
std::optional<Format> FindFormat(std::string_view name);

/// Returns the formats that a standard, a paper or a library defines, by their canonical names.
/// Their evidence is `standard`, `literature` or `library`.
CPD_API std::vector<NamedSpec> NamedFormats();

/// Returns CPD's text for a name of another library, in lower case. Returns an empty text for any
/// other name.
std::string_view OwnNameOf(std::string_view name);

/// Returns the formats that `text` may have been meant as, as "; did you mean 'x'?", or an empty
/// text. `text` is not the name of a format.
std::string FormatMeant(std::string_view text);

/// Returns the reason why `text`, in any letter case, is not the name of a format.
std::string NoSuchFormat(std::string_view text);

/// The meanings that a bare `e4m3` may have, for error messages.
inline constexpr std::string_view kE4m3IsAmbiguous =
    "e4m3 is ambiguous: write e4m3fn (OCP's, with a max of 448) or (4,3) (IEEE-like, with Inf and "
    "a "
    "max of 240)";

/// Parses the text of a format where users expect `e4m3` to mean OCP's format. Throws Error for
/// `e4m3` without a suffix, in any letter case, because it is ambiguous.
Format ParseUnambiguous(std::string_view name);

/// Returns the text of a format, or of a cast that begins with a format, in a form that
/// ParseUnambiguous reads: `e4m3` is replaced by `(4,3)`.
std::string Unambiguous(std::string text);

}  // namespace cpd
