// SPDX-License-Identifier: Apache-2.0
//
// Streams of random bits (cpd/numeric/draws/streams.h) by the names of their purposes.
#include "cpd/numeric/draws/streams.h"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "cpd/spec/error.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

Purpose PurposeNamed(const std::string& name) {
  std::string allowed;
  for (const auto& [known, purpose] : kPurposes) {
    if (known == name) return purpose;
    allowed += (allowed.empty() ? "" : ", ") + std::string(known);
  }
  throw Error("purpose must be one of " + allowed + ", got '" + name + "'");
}

}  // namespace

void BindStreams(py::module_& m) {
  m.attr("MAX_LAYERS") = kMostLayers;
  m.def(
      "stream_of",
      [](const std::string& purpose, std::uint64_t step, std::int64_t layer,
         std::int64_t position) { return StreamOf(PurposeNamed(purpose), step, layer, position); },
      py::arg("purpose"), py::arg("step"), py::arg("layer"), py::arg("position"));
  m.def(
      "stream_tag",
      [](const std::string& purpose, std::int64_t layer) {
        return StreamTag(PurposeNamed(purpose), layer);
      },
      py::arg("purpose"), py::arg("layer") = 0);
}

}  // namespace cpd
