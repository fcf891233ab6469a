// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cpd/export.h"
#include "cpd/spec/error.h"

namespace cpd {

/// A spec that has a name of its own.
struct NamedSpec {
  std::string name;
  std::string summary;   ///< what it is, in a line
  std::string source;    ///< who defines it
  std::string evidence;  ///< `standard`, `library`, `replayed` or `literature`: what that stands on
};

/// `name` with A…Z as a…z.
std::string Lower(std::string_view name);

/// `name` in quotes for a message, cut where it is long.
std::string Quoted(std::string_view name);

/// The one of `names` that `name` differs from least, letter case apart: by one letter (left out,
/// added, changed, or swapped with its neighbour), by two where it has six or more. Empty where
/// none is so near.
std::string_view Nearest(std::string_view name, std::span<const std::string_view> names);

/// "; did you mean 'x'?" of the nearest name, or nothing.
std::string DidYouMean(std::string_view name, std::span<const std::string_view> names);

/// The enumerator of E that stands at `name`'s place among names; Error lists them.
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

/// Throws Error unless `value` is an enumerator of E, of which names has one each.
template <class E>
void CheckName(const char* what, std::span<const std::string_view> names, E value) {
  if (static_cast<std::size_t>(value) < names.size()) return;
  throw Error(std::string(what) + " must be one of the " + std::to_string(names.size()) +
              " that its type names, got number " + std::to_string(static_cast<int>(value)));
}

}  // namespace cpd
