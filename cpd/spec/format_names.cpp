// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/format_names.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cpd/spec/format.h"
#include "cpd/spec/names.h"

namespace cpd {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

/// Names of other libraries, each with CPD's name: names of NumPy, torch, ml_dtypes, IEEE 754 and
/// PTX.
constexpr std::array<Pair, 29> kAliases{{
    {"float64", "fp64"},
    {"double", "fp64"},
    {"binary64", "fp64"},
    {"f64", "fp64"},
    {"float32", "fp32"},
    {"float", "fp32"},
    {"single", "fp32"},
    {"binary32", "fp32"},
    {"f32", "fp32"},
    {"float16", "fp16"},
    {"half", "fp16"},
    {"binary16", "fp16"},
    {"f16", "fp16"},
    {"bfloat16", "bf16"},
    {"float8_e3m4", "e3m4"},
    {"float8_e4m3", "e4m3"},
    {"float8_e4m3fn", "e4m3fn"},
    {"float8_e4m3fnuz", "e4m3fnuz"},
    {"float8_e4m3b11fnuz", "e4m3fnuz:bias=11"},
    {"float8_e5m2", "e5m2"},
    {"float8_e5m2fnuz", "e5m2fnuz"},
    {"float8_e8m0fnu", "e8m0"},
    {"float6_e2m3fn", "e2m3"},
    {"float6_e3m2fn", "e3m2"},
    {"float4_e2m1fn", "e2m1"},
    {"float4_e2m1fn_x2", "e2m1"},  // torch's: two in a byte
    {"ue4m3", "e4m3fn:unsigned"},
    {"ue5m3", "e5m3fn:unsigned"},
    {"ue8m0", "e8m0"},
}};

/// Names of other libraries without their beginning `float8_`. Each short name means the same as
/// the long name, because no CPD format has the short name.
constexpr std::array<Pair, 2> kShort{{{"e4m3b11fnuz", "e4m3fnuz:bias=11"}, {"e8m0fnu", "e8m0"}}};

/// Names that give only a format's number of bits, and the formats that they may mean.
constexpr std::array<Pair, 9> kWidths{{
    {"fp8", "'e4m3fn' or 'e5m2'"},
    {"float8", "'e4m3fn' or 'e5m2'"},
    {"f8", "'e4m3fn' or 'e5m2'"},
    {"fp6", "'e2m3' or 'e3m2'"},
    {"float6", "'e2m3' or 'e3m2'"},
    {"f6", "'e2m3' or 'e3m2'"},
    {"fp4", "'e2m1'"},
    {"float4", "'e2m1'"},
    {"f4", "'e2m1'"},
}};

constexpr std::array<std::string_view, 16> kUsual{
    "fp32",     "tf32", "bf16", "fp16", "e4m3", "e4m3fnuz", "e4m3fn",      "e5m2",
    "e5m2fnuz", "e3m0", "e8m0", "e2m1", "e2m3", "e3m2",     "binary8p4se", "binary8p3se",
};

constexpr std::array<std::string_view, 6> kSuffixes{"fnuz",  "fn",     "ieee",
                                                    "p3109", "finite", "p3109finite"};

constexpr std::string_view kMicroexponents =
    "made of blocks of 16 whose pairs of values share a bit of exponent (arXiv 2302.08007); next "
    "to it are 'bfp8 16' "
    "and OCP 'mxfp8', 'mxfp6-e2m3', 'mxfp4'";

/// Names, some without their number of bits, of formats that have no fixed numbers of exponent and
/// mantissa bits. Each has an explanation, and the formats of CPD that come nearest.
constexpr std::array<Pair, 9> kOthers{{
    {"nf",
     "NormalFloat (QLoRA), a table of quantiles of the normal distribution; next to it, with its "
     "blocks of 64 values, "
     "are 'e2m1 64 scale=fp32' and 'int4 64 scale=fp32'"},
    {"hif8",
     "HiFloat8, whose mantissa shrinks from 3 bits to none away from 1; next to it are 'e4m3fn', "
     "with its precision "
     "between 1/8 and 15, and 'e5m2', with its greatest exponent"},
    {"hif4",
     "HiFloat4, 64 values under a scale and two levels of factors of 2; next to it are 'nvfp4' and "
     "'mxfp4'"},
    {"mx4", kMicroexponents},
    {"mx6", kMicroexponents},
    {"mx9", kMicroexponents},
    {"posit", "a posit, whose exponent and mantissa share bits; next to it are 'e5m2' and 'fp16'"},
    {"takum", "a takum, whose exponent and mantissa share bits; next to it are 'e5m2' and 'bf16'"},
    {"lns",
     "of a logarithmic number system, whose values are powers of one base; next to it are formats "
     "without a mantissa, "
     "as 'e4m0'"},
}};

constexpr std::array<std::string_view, 5> kWide{"float128", "longdouble", "complex64", "complex128",
                                                "complex32"};

bool IsDigit(char letter) { return letter >= '0' && letter <= '9'; }

/// Returns whether a name is the name of an integer type: int8, uint4, qint32, bool, long, ….
bool IsInteger(std::string_view name) {
  for (const std::string_view word : {"bool", "short", "long", "byte", "char"}) {
    if (name == word) return true;
  }
  if (name.starts_with('q')) name.remove_prefix(1);
  if (name.starts_with('u')) name.remove_prefix(1);
  if (!name.starts_with("int")) return false;
  return std::ranges::all_of(name.substr(3), IsDigit);
}

/// Returns the explanation that kOthers has for `name`, which must be in lower case; an empty text
/// if kOthers has none.
std::string_view Other(std::string_view name) {
  const std::string_view family = name.substr(0, name.find_last_not_of("0123456789") + 1);
  for (const auto& [known, what] : kOthers) {
    if (known == name || known == family) return what;
  }
  return {};
}

/// Returns whether a name is the name of a format. Does not search for near names, so the search
/// for near names can call this function.
bool IsFormat(std::string_view name) {
  try {
    return FindFormat(name).has_value();
  } catch (const Error&) {
    return false;
  }
}

/// Returns `name` without its underscores, hyphens, periods and blanks.
std::string Joined(std::string_view name) {
  std::string joined;
  for (const char letter : name) {
    if (std::string_view("_-. ").find(letter) == std::string_view::npos) joined += letter;
  }
  return joined;
}

/// Returns the index at which eXmY begins in a name; npos if the name does not contain eXmY.
std::size_t WidthsBegin(std::string_view name) {
  for (std::size_t i = 0; i + 3 < name.size(); ++i) {
    if (name[i] == 'e' && IsDigit(name[i + 1]) && name[i + 2] == 'm' && IsDigit(name[i + 3])) {
      return i;
    }
  }
  return std::string_view::npos;
}

/// Returns the name of the format, in quotes, that the unknown name `text` probably means (or of
/// several formats). Returns an empty text if no name is near.
std::string Meant(std::string_view text) {
  for (const auto& [name, formats] : kWidths) {
    if (name == text) return std::string(formats);
  }
  const std::string joined = Joined(text);
  const std::size_t begin = WidthsBegin(joined);
  const std::string own = begin == std::string::npos ? joined : joined.substr(begin);
  // safetensors, ONNX and vLLM use F8_E4M3, FP8_E4M3 and fp8_e4m3 for OCP's format.
  if (own != text && IsFormat(own)) {
    return begin != 0 && own == "e4m3" ? "'e4m3fn'" : "'" + own + "'";
  }
  std::vector<std::string> suffixed;
  if (begin != std::string::npos) {
    const std::size_t end = own.find_first_not_of("0123456789", 3);
    for (const std::string_view suffix : kSuffixes) {
      suffixed.push_back(own.substr(0, end) + std::string(suffix));
    }
  }
  std::vector<std::string_view> names(kUsual.begin(), kUsual.end());
  for (const auto& [name, format] : kAliases) names.push_back(name);
  names.insert(names.end(), suffixed.begin(), suffixed.end());
  for (const std::string_view one : {text, std::string_view(own)}) {
    const std::string_view nearest = Nearest(one, names);
    if (!nearest.empty() && IsFormat(nearest)) return "'" + std::string(nearest) + "'";
  }
  return "";
}

}  // namespace

std::vector<NamedSpec> NamedFormats() {
  const std::string ieee = "IEEE 754-2019";
  const std::string ocp8 = "OCP 8-bit floating point (OFP8) 1.0; arXiv 2209.05433";
  const std::string mx = "OCP Microscaling formats (MX) 1.0";
  const std::string fnuz = "arXiv 2206.02915";
  const std::string p3109 = "IEEE P3109, interim report";
  const std::string types = "ml_dtypes";
  const std::string standard = "standard";
  const std::string literature = "literature";
  const std::string library = "library";
  return {
      {"fp64", "binary64, double precision", ieee, standard},
      {"fp32", "binary32, single precision", ieee, standard},
      {"tf32", "fp32's range with fp16's precision", "NVIDIA A100 white paper", literature},
      {"bf16", "fp32's range with 8 significant bits", "Intel BFLOAT16 white paper", literature},
      {"fp16", "binary16, half precision", ieee, standard},
      {"e4m3fn", "8 bits, max 448, a NaN, no Inf", ocp8, standard},
      {"e5m2", "8 bits, max 57344, Inf and NaN", ocp8, standard},
      {"e4m3fnuz", "8 bits, max 240, one NaN in place of -0", fnuz, literature},
      {"e5m2fnuz", "8 bits, max 57344, one NaN in place of -0", fnuz, literature},
      {"e4m3fnuz:bias=11", "8 bits, max 30, one NaN in place of -0", types, library},
      {"e4m3", "8 bits, max 240, IEEE-like: Inf and NaN", types, library},
      {"e3m4", "8 bits, max 15.5, IEEE-like: Inf and NaN", types, library},
      {"e3m2", "6 bits, max 28, all codes finite", mx, standard},
      {"e2m3", "6 bits, max 7.5, all codes finite", mx, standard},
      {"e2m1", "4 bits, max 6, all codes finite", mx, standard},
      {"e8m0", "powers of two from 2^-127 to 2^127 and NaN, for scales", mx, standard},
      {"binary8p4se", "8 bits, precision 4, signed, with Inf", p3109, standard},
      {"binary8p3se", "8 bits, precision 3, signed, with Inf", p3109, standard},
  };
}

std::string_view OwnNameOf(std::string_view name) {
  for (const auto& [theirs, ours] : kAliases) {
    if (theirs == name) return ours;
  }
  for (const auto& [theirs, ours] : kShort) {
    if (theirs == name) return ours;
  }
  return {};
}

Format ParseUnambiguous(std::string_view name) {
  if (Lower(name) == "e4m3") throw Error(std::string(kE4m3IsAmbiguous));
  return ParseFormat(name);
}

std::string Unambiguous(std::string text) {
  constexpr std::string_view kBare = "e4m3";
  if (text == kBare || text.starts_with("e4m3 ")) text.replace(0, kBare.size(), "(4,3)");
  return text;
}

std::string FormatMeant(std::string_view text) {
  const std::string lower = Lower(text.substr(0, text.find(':')));
  const std::string meant = lower.size() > 40 ? "" : Meant(lower);
  return meant.empty() ? "" : "; did you mean " + meant + "?";
}

std::string NoSuchFormat(std::string_view text) {
  const std::string lower = Lower(text);
  if (IsInteger(lower)) {
    return "no format " + Quoted(text) +
           ": of integers there are int2 … int25, in two's complement (int8:full with -128), and "
           "sm2 … "
           "sm25, of sign and magnitude; other formats are of floating-point numbers, such as "
           "e4m3fn";
  }
  if (std::ranges::find(kWide, lower) != kWide.end()) {
    return "no format " + Quoted(text) +
           ": a format's values are binary64 values, with at most 11 exponent and 52 mantissa bits";
  }
  if (const std::string_view other = Other(lower); !other.empty()) {
    return "no format " + Quoted(text) + ": it is " + std::string(other) +
           " (formats here have an exponent and a mantissa of fixed widths)";
  }
  const std::string meant = FormatMeant(text);
  return "unknown format " + Quoted(text) + (meant.empty() ? "; names" : meant + " Names") +
         " are like e4m3, (4,3), e4m3fn, e5m2fnuz, e3m2ieee, e2m1, e8m0, fp32, tf32, bf16, "
         "fp16, float8_e4m3fn, binary8p4se, with options as in e4m3fn:bias=11:nosub:unsigned";
}

}  // namespace cpd
