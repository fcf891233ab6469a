// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "cpd/export.h"
#include "cpd/spec/error.h"

namespace cpd {

/// A spec that has its own name.
struct NamedSpec {
  std::string name;
  std::string summary;   ///< a description in one line
  std::string source;    ///< the standard, paper or library that defines it
  std::string evidence;  ///< the kind: `standard`, `library`, `replayed` or `literature`
};

/// Returns `name` with A…Z replaced by a…z.
std::string Lower(std::string_view name);

/// Returns `name` in quotes for a message. A long name is cut.
CPD_API std::string Quoted(std::string_view name);

/// Returns the name among `names` that differs least from `name`, in any letter case. Letters may
/// be left out, added, changed, or swapped with their neighbors: one such difference is allowed,
/// and two if `name` has six letters or more. Returns an empty text if no name is that near.
std::string_view Nearest(std::string_view name, std::span<const std::string_view> names);

/// Returns "; did you mean 'x'?" with the nearest name, or an empty text.
CPD_API std::string DidYouMean(std::string_view name, std::span<const std::string_view> names);

/// Returns the enumerator of E whose value is the index of `name` in `names`. Throws Error, which
/// lists the names, for any other name.
template <class E>
E ParseName(const char* what, std::span<const std::string_view> names, std::string_view name) {
  std::string allowed;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<E>(i);
    allowed += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + std::string(names[i]);
  }
  throw Error(std::string(what) + " must be " + allowed + ", got " + Quoted(name) +
              DidYouMean(name, names));
}

/// An enumeration that has NamesOf. Each name is at the index of its enumerator.
template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E value) {
  { NamesOf(value) } -> std::convertible_to<std::span<const std::string_view>>;
};

template <NamedEnum E>
std::string ToString(E value) {
  const std::span<const std::string_view> names = NamesOf(value);
  const auto i = static_cast<std::size_t>(value);
  return i < names.size() ? std::string(names[i]) : "number " + std::to_string(i);
}

/// Returns the enumerator of a name. Throws Error for any other name.
template <NamedEnum E>
E ParseName(const char* what, std::string_view name) {
  return ParseName<E>(what, NamesOf(E{}), name);
}

/// Throws Error unless `value` is an enumerator of E. `names` has one name for each enumerator.
template <class E>
void CheckName(const char* what, std::span<const std::string_view> names, E value) {
  if (static_cast<std::size_t>(value) < names.size()) return;
  throw Error(std::string(what) + " must be one of the " + std::to_string(names.size()) +
              " that its type names, got number " + std::to_string(static_cast<int>(value)));
}
template <NamedEnum E>
void CheckName(const char* what, E value) {
  CheckName(what, NamesOf(value), value);
}

/// Throws Error for an option that `owner` does not have. The error lists `names`, then `others`,
/// and suggests the nearest name.
[[noreturn]] CPD_API void RefuseOption(std::string_view name, std::string_view owner,
                                       std::span<const std::string_view> names,
                                       std::span<const std::string_view> others = {});

}  // namespace cpd
