// SPDX-License-Identifier: Apache-2.0
//
// Binds the spec of a reduction. Python uses the C++ object, which is checked when it is made.
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
  BindSpec<Reduce>(m, "Reduce")
      .def("options", [](const Reduce& s) { return OptionsOf(s); })
      .def(
          "check_world", [](const Reduce& s, int world) { Check(s, world); }, py::arg("world"))
      .def("may_stall", &MayStall, py::arg("world"));
}

}  // namespace cpd
