// SPDX-License-Identifier: Apache-2.0
//
// Names of formats in other libraries. Where two mean different things by a name, the name means
// what the library's own type of exactly that name holds: `float8_e4m3` is ml_dtypes' IEEE-like
// e4m3 (max 240), `float8_e4m3fn` is OCP's (max 448). So `float4_e2m1fn`, `float6_e2m3fn` and
// `float6_e3m2fn` are OCP's finite formats, though `fn` on a bare name is the encoding with a NaN.
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

/// A format's fields as they are given: numbers of any size, and a bias only where it is not the
/// default of the others. MakeFormat checks them.
struct FormatFields {
  int exp = 0, man = 0;
  std::optional<int> bias{};
  Encoding encoding = Encoding::ieee;
  bool is_signed = true, subnormals = true;
};
CPD_API Format MakeFormat(const FormatFields& fields);
CPD_API FormatFields FormatFieldsOf(const Format& format);

/// With `exp` and `man` among the keys the name may be empty.
template <>
CPD_API Format Make<Format>(std::string_view name, std::span<const Option> keys);
/// The fields that a front end passes, then the fields that follow from them.
template <>
CPD_API Keys<FormatFields> KeysOf<FormatFields>();
CPD_API Fields FieldsOf(const Format& format);

/// Returns the format of that name, in any letter case; nullopt if there is none. Throws Error for
/// a name whose numbers or options no format has.
std::optional<Format> FindFormat(std::string_view name);

/// The formats that a standard, a paper or a library defines, by their canonical names. Evidence is
/// `standard`, `literature` or `library`.
CPD_API std::vector<NamedSpec> NamedFormats();

/// The project's own text for a name of another library, in lower case; empty for any other name.
std::string_view OwnNameOf(std::string_view name);

/// Formats that `text`, which names none, may have been meant as: `; did you mean 'x'?` or nothing.
std::string FormatMeant(std::string_view text);

/// Why `text`, in any letter case, names no format.
std::string NoSuchFormat(std::string_view text);

/// The meanings that a bare `e4m3` may have, for errors.
inline constexpr std::string_view kE4m3IsAmbiguous =
    "e4m3 is ambiguous: write e4m3fn (OCP's, with a max of 448) or (4,3) (IEEE-like, with Inf and "
    "a "
    "max of 240)";

/// Parses a format where readers take `e4m3` for OCP's. Throws Error for a bare `e4m3`, in any
/// letter case.
Format ParseUnambiguous(std::string_view name);

/// The text of a format, or of a cast that begins with one, which ParseUnambiguous reads: `(4,3)`
/// in the place of `e4m3`.
std::string Unambiguous(std::string text);

}  // namespace cpd
