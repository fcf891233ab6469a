// SPDX-License-Identifier: Apache-2.0
//
// The spec of a reduction as Python sees it: the one native object, checked where it is made.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "cpd/comm/spec.h"
#include "specs.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {

void BindReduceSpec(py::module_& m) {
  py::class_<Reduce>(m, "Reduce")
      .def("fields", &FieldsAsDict<Reduce>)
      .def_property_readonly("text", [](const Reduce& s) { return ToString(s); })
      .def_static(
          "parse",
          [](std::string_view text, const std::vector<Option>& keys) {
            return ParseReduce(text, keys);
          },
          py::arg("text"), py::arg("keys"))
      .def_static("keys", 
                  [] {
                    py::typing::Dict<py::str, py::str> keys;
                    for (const auto& [name, kind] : ReduceKeys()) keys[py::str(name)] = kind;
                    return keys;
                  })
      .def("options", [](const Reduce& s) { return KeysOf(s); })
      .def(
          "check_world", [](const Reduce& s, int world) { Check(s, world); }, py::arg("world"))
      .def("may_stall", &MayStall, py::arg("world"));
}

}  // namespace cpd
