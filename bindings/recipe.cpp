// SPDX-License-Identifier: Apache-2.0
//
// Binds recipes, which Python passes as texts.
#include "cpd/spec/recipe.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <string>
#include <tuple>
#include <vector>

#include "specs.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {

void BindRecipes(py::module_& m) {
  m.attr("SCALES_AT") = Tuple(NamesOf(ScalesAt{}));
  m.def("recipe_parts", [] {
    std::vector<std::tuple<Purpose, std::string, std::string>> parts;
    for (const RecipePart& one : RecipeParts()) {
      parts.emplace_back(one.purpose, one.field, one.tensor);
    }
    return parts;
  });
  py::class_<Recipe>(m, "Recipe")
      .def_static("parse", &ParseRecipe, py::arg("text"))
      .def_static("keys", &KeysAsDict<Recipe>)
      .def_property_readonly("text", [](const Recipe& r) { return ToString(r); })
      .def("fields", &FieldsAsDict<Recipe>)
      .def("roundings",
           [](const Recipe& r) -> py::typing::Tuple<py::str, py::ellipsis> {
             return py::tuple(py::cast(RoundingsOf(r)));
           })
      .def("is_cast_once", &IsCastOnce, py::arg("cast"))
      .def("gemms", &GemmsOf, py::arg("activation_is_cast"), py::arg("weight_is_cast"));
}

}  // namespace cpd
