// SPDX-License-Identifier: Apache-2.0
//
// The oracle in bulk, over arrays of codes.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpd/numeric/error.h"
#include "cpd/study/oracle.h"
#include "gil.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

using Codes = py::array_t<std::uint32_t, py::array::c_style>;

/// (codes, flags, corners) of each line.
py::tuple OracleArrays(const std::string& operation, const std::vector<Format>& formats,
                       const Format& result, const RoundingOptions& rounding,
                       const std::string& tininess, const std::vector<Codes>& operands,
                       const std::optional<Codes>& random) {
  if (formats.size() != operands.size() || operands.empty() || operands.size() > 3) {
    throw Error("the oracle takes a format for each of one to three operands");
  }
  ElementRule rule{ParseElementwise(operation), {}, result, rounding, ParseTininess(tininess)};
  ElementLines lines;
  lines.n = operands[0].size();
  for (std::size_t k = 0; k < operands.size(); ++k) {
    if (operands[k].size() != lines.n) throw Error("operands must be of one length");
    rule.operands[k] = formats[k];
    lines.operands[k] = operands[k].data();
  }
  if (random) {
    if (random->size() != lines.n) throw Error("random must have the operands' length");
    lines.random = random->data();
  }
  Codes codes(lines.n);
  py::array_t<std::uint8_t> flags(lines.n);
  py::array_t<std::uint16_t> corners(lines.n);
  lines.codes = codes.mutable_data();
  lines.flags = flags.mutable_data();
  lines.corners = corners.mutable_data();
  WithoutGil([&] { OracleElements(rule, lines); });
  return py::make_tuple(codes, flags, corners);
}

}  // namespace

void BindVectors(py::module_& m) {
  m.def("oracle_elements", &OracleArrays, py::arg("operation"), py::arg("formats"),
        py::arg("result"), py::arg("rounding"), py::arg("tininess"), py::arg("operands"),
        py::arg("random") = py::none());
}

}  // namespace cpd
