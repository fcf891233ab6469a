// SPDX-License-Identifier: Apache-2.0
//
// What other libraries call a format. Where two mean different things by a name, the name means
// what the library's own type of exactly that name holds: `float8_e4m3` is ml_dtypes' IEEE-like
// e4m3 (max 240), `float8_e4m3fn` is OCP's (max 448). So `float4_e2m1fn`, `float6_e2m3fn` and
// `float6_e3m2fn` are OCP's finite formats, though `fn` on a bare name is the encoding with a NaN.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cpd/spec/format.h"

namespace cpd {

/// The format of that name, in any letter case; nullopt where it is none. Throws Error for a name
/// whose numbers or options no format has.
std::optional<Format> FindFormat(std::string_view name);

/// The project's own text for a name of another library, in lower case; empty for any other name.
std::string_view OwnNameOf(std::string_view name);

/// Formats that `text`, which names none, may have been meant as: `; did you mean 'x'?` or nothing.
std::string FormatMeant(std::string_view text);

/// Why `text`, in any letter case, names no format.
std::string NoSuchFormat(std::string_view text);

}  // namespace cpd
