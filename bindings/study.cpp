// SPDX-License-Identifier: Apache-2.0
//
// Binds virtual ranks, round-off measurements and the cost of an exchange.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs.h"
#include "cpd/comm/virtual.h"
#include "cpd/study/cost.h"
#include "cpd/study/roundoff.h"
#include "gil.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

using Sizes = std::vector<std::int64_t>;

void BindVirtualReduce(py::module_& m) {
  py::class_<TensorReport>(m, "TensorReport")
      .def_readonly("shift", &TensorReport::shift)
      .def_readonly("non_finite", &TensorReport::non_finite)
      .def_readonly("overflowed", &TensorReport::overflowed)
      .def_readonly("underflowed", &TensorReport::underflowed)
      .def_readonly("values", &TensorReport::values)
      .def_readonly("zeros", &TensorReport::zeros)
      .def_readonly("bytes", &TensorReport::bytes)
      .def_readonly("staged_bytes", &TensorReport::staged_bytes)
      .def_readonly("bits", &TensorReport::bits);
  py::class_<VirtualReduce>(m, "VirtualReduce")
      .def(py::init([](const Reduce& spec, int world, const Sizes& sizes, std::uint64_t seed,
                       std::uint64_t step, const Sizes& numbers, GivenStates states,
                       const Sizes& rows, bool counts_bytes) {
             return std::make_unique<VirtualReduce>(
                 spec, world, sizes,
                 TensorOptions{.seed = seed,
                               .step = step,
                               .numbers = numbers,
                               .states = states.value_or(nullptr),
                               .rows = rows,
                               .commits = false,
                               .counts_bytes = counts_bytes});
           }),
           py::arg("spec"), py::arg("world"), py::arg("sizes"), py::arg("seed") = 0,
           py::arg("step") = 0, py::arg("numbers") = Sizes(), py::arg("states") = py::none(),
           py::arg("rows") = Sizes(), py::arg("counts_bytes") = true, py::keep_alive<1, 8>())
      .def("wants_ranges", &VirtualReduce::wants_ranges)
      .def("schedule", &VirtualReduce::schedule)
      .def("end_rank", &VirtualReduce::EndRank, NoGil())
      .def("commit", &VirtualReduce::Commit)
      .def("report", &VirtualReduce::report, py::arg("layer"), NoGil())
      .def(
          "observe",
          [](VirtualReduce& reduce, int layer, const py::object& x) {
            WithoutGil([&, x = LayerView(x)] { reduce.Observe(layer, x); });
          },
          py::arg("layer"), py::arg("x"))
      .def(
          "contribute",
          [](VirtualReduce& reduce, int layer, const py::object& x, bool stays) {
            WithoutGil([&, x = LayerView(x)] { reduce.Contribute(layer, x, stays); });
          },
          py::arg("layer"), py::arg("x"), py::arg("stays") = false)
      .def(
          "result",
          [](VirtualReduce& reduce, int layer, const py::object& out) {
            WithoutGil([&, out = LayerView(out)] { reduce.Result(layer, out); });
          },
          py::arg("layer"), py::arg("out"));
}

Roundoff RoundoffArrays(const py::array& reference, const py::array& value) {
  const TensorView h = ViewOf(reference);
  const TensorView l = ViewOf(value);
  const ReleaseGil release;
  return MeasureRoundoff(h, l);
}

using Floats = std::vector<float>;

Cost CostOfLayers(const Reduce& spec, int world, int rank, const Sizes& sizes, std::int64_t chunk,
                  const Sizes& rows, const Floats& largest, const Sizes& numbers) {
  return CostOf(spec, world, rank, sizes, chunk, {rows, largest, numbers});
}

/// Converts each Round to a tuple for Python: (steps, bytes, messages across hosts, messages within
/// a host). A Round describes steps of an all-reduce that have equal message sizes and counts.
std::vector<std::array<std::int64_t, 4>> Fields(std::span<const Round> rounds) {
  std::vector<std::array<std::int64_t, 4>> fields;
  for (const Round& round : rounds) {
    fields.push_back({round.steps, round.bytes, round.across, round.within});
  }
  return fields;
}

std::vector<std::array<std::int64_t, 4>> RoundsOfLayers(const Reduce& spec, int world,
                                                        const Sizes& sizes, std::int64_t per_host,
                                                        const Sizes& rows, const Floats& largest) {
  return Fields(RoundsOf(spec, world, sizes, per_host, {rows, largest}));
}

std::vector<std::array<std::int64_t, 4>> AgreementOfLayers(const Reduce& spec, int world,
                                                           const Sizes& sizes,
                                                           std::int64_t per_host,
                                                           const Sizes& rows) {
  return Fields(AgreementOf(spec, world, sizes, per_host, {rows}));
}

void BindStudy(py::module_& m) {
  py::class_<Roundoff>(m, "Roundoff")
      .def_readonly("error", &Roundoff::error)
      .def_readonly("relative_rms", &Roundoff::relative_rms)
      .def_readonly("count", &Roundoff::count)
      .def_readonly("zero_references", &Roundoff::zero_references)
      .def_readonly("non_finite", &Roundoff::non_finite)
      .def_readonly("error_squares", &Roundoff::error_squares)
      .def_readonly("reference_squares", &Roundoff::reference_squares);
  m.def("roundoff", &RoundoffArrays, py::arg("reference"), py::arg("value"));
  m.def(
      "add_to_reference",
      [](const py::array& x, const py::array& sum) {
        WithoutGil([&, x = ViewOf(x), sum = ViewOf(sum)] { AddToReference(x, sum); });
      },
      py::arg("x"), py::arg("sum"));
  m.def(
      "divide_reference",
      [](const py::array& sum, double divisor) {
        WithoutGil([&, sum = ViewOf(sum)] { DivideReference(sum, divisor); });
      },
      py::arg("sum"), py::arg("divisor"));
  py::class_<Cost>(m, "Cost")
      .def_readonly("steps", &Cost::steps)
      .def_readonly("bytes_sent", &Cost::bytes_sent)
      .def_readonly("bytes_received", &Cost::bytes_received)
      .def_readonly("exact", &Cost::exact);
  m.def("cost", &CostOfLayers, py::arg("spec"), py::arg("world"), py::arg("rank"), py::arg("sizes"),
        py::arg("chunk"), py::arg("rows"), py::arg("largest"), py::arg("numbers"));
  m.def("rounds", &RoundsOfLayers, py::arg("spec"), py::arg("world"), py::arg("sizes"),
        py::arg("per_host"), py::arg("rows"), py::arg("largest"));
  m.def("agreement", &AgreementOfLayers, py::arg("spec"), py::arg("world"), py::arg("sizes"),
        py::arg("per_host"), py::arg("rows"));
}

}  // namespace

void BindStudies(py::module_& m) {
  BindVirtualReduce(m);
  BindStudy(m);
}

}  // namespace cpd
