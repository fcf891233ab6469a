// SPDX-License-Identifier: Apache-2.0
//
// Functions that bind the specs of cpd._core (formats, rounding options, accumulators and so on).
// All specs get the same Python interface.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "cpd/spec/fields.h"
#include "cpd/spec/keys.h"
#include "cpd/spec/names.h"

namespace cpd {

inline pybind11::tuple Tuple(std::span<const std::string_view> names) {
  return pybind11::tuple(pybind11::cast(std::vector<std::string>(names.begin(), names.end())));
}

/// Converts a spec's fields for Python keyword arguments: an enumerator becomes its name, a nested
/// spec its text.
template <class Spec>
pybind11::typing::Dict<pybind11::str, pybind11::object> FieldsAsDict(const Spec& spec) {
  pybind11::typing::Dict<pybind11::str, pybind11::object> fields;
  for (const auto& [name, value] : FieldsOf(spec)) {
    fields[pybind11::str(name)] = std::visit(
        [](const auto& one) -> pybind11::object {
          if constexpr (std::is_same_v<std::decay_t<decltype(one)>, std::monostate>) {
            return pybind11::none();
          } else {
            return pybind11::cast(one);
          }
        },
        value);
  }
  return fields;
}

/// A dict that maps the name of each predefined spec to a description of the spec, a dict of
/// strings. The Python function `named()` of a spec's class returns such a dict.
using NamedDict =
    pybind11::typing::Dict<pybind11::str, pybind11::typing::Dict<pybind11::str, pybind11::str>>;
NamedDict AsDict(const std::vector<NamedSpec>& specs);

/// A dict from the keys of a spec's text to the kinds of their values. KeysAsDict makes it.
using KeyDict = pybind11::typing::Dict<pybind11::str, pybind11::str>;
template <class Spec>
KeyDict KeysAsDict() {
  KeyDict keys;
  for (const Key<Spec>& row : KeysOf<Spec>().rows) {
    if (row.IsKey()) keys[pybind11::str(row.name)] = std::string(row.kind);
  }
  return keys;
}

/// Binds what every spec has: its fields, its keys (from `Table`), its canonical text, and `parse`,
/// which reads such a text.
template <class Spec, class Table = Spec>
pybind11::class_<Spec> BindSpec(pybind11::module_& m, const char* name) {
  pybind11::class_<Spec> made(m, name);
  const auto make = [](std::string_view text, const std::vector<Option>& keys) {
    return Make<Spec>(text, keys);
  };
  made.def_static("parse", make, pybind11::arg("text"),
                  pybind11::arg("keys") = std::vector<Option>())
      .def_static("keys", &KeysAsDict<Table>)
      .def("fields", &FieldsAsDict<Spec>)
      .def_property_readonly("text", [](const Spec& spec) { return ToString(spec); });
  return made;
}

}  // namespace cpd
