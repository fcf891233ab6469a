// SPDX-License-Identifier: Apache-2.0
//
// What the specs of cpd._core have in common.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/spec/rounding.h"

namespace cpd {

inline pybind11::tuple Tuple(std::span<const std::string_view> names) {
  return pybind11::tuple(pybind11::cast(std::vector<std::string>(names.begin(), names.end())));
}

/// The four fields that say how `Spec` rounds.
template <class Spec>
void BindRounding(pybind11::class_<Spec>& made) {
  made.def_property_readonly("rounding", [](const Spec& s) { return ToString(s.rounding.mode); })
      .def_property_readonly("overflow",
                             [](const Spec& s) { return ToString(s.rounding.overflow); })
      .def_property_readonly("random_bits", [](const Spec& s) { return s.rounding.random_bits; })
      .def_property_readonly("variant", [](const Spec& s) { return ToString(s.rounding.variant); });
}

}  // namespace cpd
