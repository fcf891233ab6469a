// SPDX-License-Identifier: Apache-2.0
//
// The table of a spec's keys, one row for each key. The table determines the parser and the printer
// of `name=value`, the fields that a front end shows, and the error for an unknown key.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpd/spec/fields.h"
#include "cpd/spec/format.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"

namespace cpd {

/// A key of a spec's text: one row of the table.
template <class Spec>
struct Key {
  std::string_view name;
  /// The kind of the key's values, for a front end: `format`, `integer`, `number`, `switch` (a
  /// bool), `word`, or a name that only this spec uses.
  std::string_view kind;
  /// Sets the key from a text. Null for a row that is not a key, but a number that is computed from
  /// other fields. Setting a key may set the defaults of keys in later rows of the table.
  void (*set)(Spec& spec, std::string_view text);
  FieldValue (*get)(const Spec& spec);
  bool (*has)(const Spec& spec) = nullptr;  ///< whether this spec has the key; null: always
  /// Returns whether the canonical text has the key even if its value is the default. Null pointer:
  /// the text leaves the key out if its value is the default.
  bool (*always)(const Spec& spec) = nullptr;

  [[nodiscard]] constexpr bool IsOf(const Spec& spec) const { return has == nullptr || has(spec); }
  [[nodiscard]] constexpr bool IsKey() const { return set != nullptr; }
};

/// A table of keys: the rows, in the order of the canonical text, and the owner of the keys ("a
/// cast").
template <class Spec>
struct Keys {
  std::string_view owner;
  std::span<const Key<Spec>> rows;
};

// ---- rows of members ----------------------------------------------------------------------------

/// The name of a key as a compile-time constant. If a value cannot be read, the error quotes this
/// name.
template <std::size_t N>
struct KeyName {
  constexpr KeyName(const char (&text)[N]) { std::copy_n(text, N, letters); }  // NOLINT
  char letters[N];
};

template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
};

template <class Class, class T>
Class ClassOf(T Class::*);

/// Returns the member at the end of a path of members: a field of `spec`, then a field of that
/// field, and so on. Any std::optional before the end must have a value.
template <auto first, auto... rest>
auto& At(auto& spec) {
  auto& member = spec.*first;
  if constexpr (sizeof...(rest) == 0) {
    return member;
  } else if constexpr (requires { *member; }) {
    return At<rest...>(*member);
  } else {
    return At<rest...>(member);
  }
}

/// Reads a value from a text: a number, a word of an enumeration (by its NamesOf), `true` or
/// `false`, a format, or any type that ParseValue reads. `none` resets an optional value.
template <class T>
void Read(T& field, std::string_view name, std::string_view text) {
  if constexpr (!std::same_as<T, typename Unwrapped<T>::type>) {
    field.reset();
    if (text != "none") Read(field.emplace(), name, text);
  } else if constexpr (std::same_as<T, bool>) {
    static constexpr std::array<std::string_view, 2> kSwitch{"false", "true"};
    field = ParseName<int>(std::string(name).c_str(), kSwitch, text) == 1;
  } else if constexpr (std::integral<T>) {
    field = ParseInteger<T>(name, text);
  } else if constexpr (std::floating_point<T>) {
    field = ParseNumber<T>(name, text);
  } else if constexpr (std::is_enum_v<T>) {
    field = ParseName<T>(std::string(name).c_str(), text);
  } else if constexpr (std::same_as<T, Format>) {
    field = ParseFormat(text);
  } else {
    ParseValue(field, text);
  }
}

template <class T>
constexpr std::string_view KindOf() {
  if (std::same_as<T, bool>) return "switch";
  if (std::integral<T>) return "integer";
  if (std::floating_point<T>) return "number";
  return std::same_as<T, Format> ? "format" : "word";
}

/// Returns the row of the table of keys for a member of the spec: `first`, or a member within
/// `first`. `rest` then lists the members from `first` to that inner member.
template <KeyName name, auto first, auto... rest>
constexpr auto KeyOf(bool (*has)(const decltype(ClassOf(first))&) = nullptr,
                     bool (*always)(const decltype(ClassOf(first))&) = nullptr) {
  using Spec = decltype(ClassOf(first));
  using T = std::remove_reference_t<decltype(At<first, rest...>(std::declval<Spec&>()))>;
  return Key<Spec>{
      name.letters,
      KindOf<typename Unwrapped<T>::type>(),
      [](Spec& spec, std::string_view text) { Read(At<first, rest...>(spec), name.letters, text); },
      [](const Spec& spec) { return FieldOf(At<first, rest...>(spec)); },
      has,
      always};
}

// ---- what follows from a table ------------------------------------------------------------------

template <class Spec>
std::vector<std::string_view> NamesOf(const Keys<Spec>& keys) {
  std::vector<std::string_view> names;
  for (const Key<Spec>& row : keys.rows) {
    if (row.IsKey()) names.push_back(row.name);
  }
  return names;
}

/// Returns the names of the keys that this spec has.
template <class Spec>
std::vector<std::string_view> NamesOf(const Keys<Spec>& keys, const Spec& spec) {
  std::vector<std::string_view> names;
  for (const Key<Spec>& row : keys.rows) {
    if (row.IsKey() && row.IsOf(spec)) names.push_back(row.name);
  }
  return names;
}

/// Returns the row of the table `keys` for the key `name`. For an unknown key, throws Error, which
/// names the known keys.
template <class Spec>
const Key<Spec>& KeyNamed(const Keys<Spec>& keys, std::string_view name) {
  const auto found = std::ranges::find(keys.rows, name, &Key<Spec>::name);
  if (found != keys.rows.end() && found->IsKey()) return *found;
  RefuseOption(name, keys.owner, NamesOf(keys));
}

/// Calls set(row, text) for each option of `given`, in the order of the table. Throws Error if an
/// option is not in the table.
template <class Spec, class Set>
void SetKeys(const Keys<Spec>& keys, std::span<const Option> given, Set set) {
  for (const auto& [name, text] : given) (void)KeyNamed(keys, name);
  for (const Key<Spec>& row : keys.rows) {
    if (const std::string* const text = ValueOf(given, row.name)) set(row, *text);
  }
}
template <class Spec>
void SetKeys(const Keys<Spec>& keys, std::span<const Option> given, Spec& spec) {
  SetKeys(keys, given, [&](const Key<Spec>& row, const std::string& text) { row.set(spec, text); });
}

/// Returns ` name=value` for each key in which `spec` differs from `base`, and for the keys that
/// are always present. `base` is the spec that the text would stand for without these keys.
template <class Spec>
std::string TextOfKeys(const Keys<Spec>& keys, const Spec& spec, Spec base) {
  std::string text;
  for (const Key<Spec>& row : keys.rows) {
    if (!row.IsKey() || !row.IsOf(spec)) continue;
    const FieldValue value = row.get(spec);
    const bool always = row.always != nullptr && row.always(spec);
    if (!always && row.get(base) == value) continue;
    const std::string word = TextOf(value);
    row.set(base, word);
    text += " " + std::string(row.name) + "=" + Enclosed(word);
  }
  return text;
}

/// Returns every field with its name. A field that the spec does not have is not set
/// (std::monostate).
template <class Spec>
Fields FieldsOf(const Spec& spec) {
  Fields fields;
  for (const Key<Spec>& row : KeysOf<Spec>().rows) {
    fields.emplace_back(row.name, row.IsOf(spec) ? row.get(spec) : FieldValue{});
  }
  return fields;
}

}  // namespace cpd
