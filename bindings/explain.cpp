// SPDX-License-Identifier: Apache-2.0
//
// Binds the scope in which calls on a thread only record what they would run
// (cpd/base/explaining.h), for python/cpd/ops/explain.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>

#include "cpd/base/explaining.h"

namespace py = pybind11;

namespace cpd {
namespace {

using Fields = py::typing::Dict<py::str, py::object>;

/// A Python context manager. Between __enter__ and __exit__, calls on its thread only record what
/// they would run.
struct Scope {
  int gpu = -1;
  std::unique_ptr<Explaining> explaining;

  void Enter() { explaining = std::make_unique<Explaining>(gpu); }
  py::typing::List<Fields> Exit() {
    py::typing::List<Fields> steps;
    for (const Explanation& step : explaining->steps()) {
      steps.append(py::dict(py::arg("name") = step.function, py::arg("backend") = step.backend,
                            py::arg("kernel") = step.kernel, py::arg("path") = step.path,
                            py::arg("tile") = py::tuple(py::cast(step.tile)),
                            py::arg("threads") = step.threads, py::arg("why") = step.why));
    }
    explaining.reset();
    return steps;
  }
};

}  // namespace

void BindExplanations(py::module_& m) {
  py::class_<Scope>(m, "Explaining")
      .def(py::init([](int gpu) { return Scope{gpu, nullptr}; }), py::arg("gpu") = -1)
      .def("enter", &Scope::Enter)
      .def("exit", &Scope::Exit);
  m.def("explains", &Explains);
}

}  // namespace cpd
