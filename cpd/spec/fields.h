// SPDX-License-Identifier: Apache-2.0
//
// The fields of a spec as names and plain values, for a front end that shows them. A format or
// another spec within a spec is represented by its text, and an enumerator by its name.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cpd {

/// The value of a field. std::monostate stands for a field that is not set.
using FieldValue =
    std::variant<std::monostate, bool, std::int64_t, std::uint64_t, float, double, std::string>;
using Fields = std::vector<std::pair<std::string, FieldValue>>;
/// An option of a spec's text: its name and its value.
using Option = std::pair<std::string, std::string>;

/// The table of a spec's keys (keys.h). The header of each spec declares the specialization of
/// KeysOf for the spec.
template <class Spec>
struct Keys;
template <class Spec>
Keys<Spec> KeysOf();
/// Makes a spec from a text and from `keys`, which replace the keys of the text.
template <class Spec>
Spec Make(std::string_view text, std::span<const Option> keys);

template <class T>
FieldValue FieldOf(const T& value) {
  if constexpr (std::same_as<T, bool> || std::same_as<T, std::uint64_t>) {
    return value;
  } else if constexpr (std::integral<T>) {
    return static_cast<std::int64_t>(value);
  } else if constexpr (std::floating_point<T>) {
    return value;
  } else if constexpr (std::convertible_to<T, std::string_view>) {
    return std::string(value);
  } else {
    return ToString(value);
  }
}

template <class T>
FieldValue FieldOf(const std::optional<T>& value) {
  return value ? FieldOf(*value) : FieldValue{};
}

}  // namespace cpd
