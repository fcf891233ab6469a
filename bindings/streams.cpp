// SPDX-License-Identifier: Apache-2.0
//
// Binds streams of random bits (cpd/numeric/draws/streams.h) by the names of their purposes.
#include "cpd/numeric/draws/streams.h"

#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "cpd/spec/purpose.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {

void BindStreams(py::module_& m) {
  py::native_enum<Purpose> purposes(m, "Purpose", "enum.IntEnum", "What a rounding is for.");
  for (const auto& [name, purpose] : kPurposes) purposes.value(name.data(), purpose);
  purposes.finalize();
  m.attr("MAX_LAYERS") = kMostLayers;
  m.def(
      "stream_of",
      [](const std::string& purpose, std::uint64_t step, std::int64_t layer,
         std::int64_t position) { return StreamOf(ParsePurpose(purpose), step, layer, position); },
      py::arg("purpose"), py::arg("step"), py::arg("layer"), py::arg("position"));
  m.def(
      "stream_tag",
      [](const std::string& purpose, std::int64_t layer) {
        return StreamTag(ParsePurpose(purpose), layer);
      },
      py::arg("purpose"), py::arg("layer") = 0);
}

}  // namespace cpd
