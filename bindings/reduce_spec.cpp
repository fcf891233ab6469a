// SPDX-License-Identifier: Apache-2.0
//
// The spec of a reduction as Python sees it: the one native object, checked where it is made.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "codecs.h"
#include "cpd/comm/spec.h"
#include "cpd/compress/scaled_blocks.h"
#include "cpd/scale/aps.h"
#include "cpd/spec/error.h"
#include "specs.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

std::string Repr(const py::object& given) { return py::repr(given).cast<std::string>(); }

/// The enumerator of a name; errors as Python writes values.
template <class E>
E OneOf(const char* what, std::span<const std::string_view> names, const py::object& given) {
  if (py::isinstance<py::str>(given)) {
    const auto found = std::ranges::find(names, given.cast<std::string>());
    if (found != names.end()) return static_cast<E>(found - names.begin());
  }
  std::string allowed;
  for (const std::string_view one : names) allowed += "'" + std::string(one) + "', ";
  throw Error(std::string(what) + " must be one of " + allowed + "got " + Repr(given));
}

Aps ApsFrom(const py::object& given) {
  if (given.is(py::bool_(false))) return Aps::off;
  if (given.is(py::bool_(true))) return Aps::on;
  if (py::isinstance<py::str>(given) && given.cast<std::string>() == "paper") return Aps::paper;
  throw Error("aps must be one of False, True, 'paper', got " + Repr(given));
}

py::object FromAps(Aps aps) {
  return aps == Aps::paper ? py::object(py::str("paper")) : py::bool_(aps == Aps::on);
}

int GroupSize(std::optional<int> given) {
  if (given && *given < 1) {
    throw Error("group_size must be at least 1, got " + std::to_string(*given));
  }
  return given.value_or(0);
}

double LossScale(const py::object& given) {
  const auto scale = given.cast<double>();
  if (!IsLossScale(scale)) {
    throw Error("loss_scale must be a power of two from 2^-126 to 2^126, got " +
                py::str(given).cast<std::string>());
  }
  return scale;
}

Reduce MakeSpec(const std::variant<Format, Scaled, BoundCodec>& wire,
                const Accumulator& accumulator, const py::object& order, const py::object& exchange,
                std::optional<int> group_size, const py::object& aps, const py::object& loss_scale,
                bool average, const py::object& divide, const RoundingOptions& rounding,
                const Format& result) {
  Reduce spec;
  if (const auto* format = std::get_if<Format>(&wire)) {
    spec.format = *format;
  } else {
    const auto* scaled = std::get_if<Scaled>(&wire);
    spec.wire = scaled != nullptr ? std::make_shared<ScaledBlocks>(*scaled, rounding)
                                  : std::get<BoundCodec>(wire).codec;
    spec.format = spec.wire->format();
  }
  spec.rounding = rounding;
  spec.accumulator = accumulator;
  spec.result = result;
  spec.order = OneOf<Order>("order", OrderNames(), order);
  spec.exchange = OneOf<Exchange>("exchange", ExchangeNames(), exchange);
  spec.group_size = GroupSize(group_size);
  spec.aps = ApsFrom(aps);
  spec.loss_scale = LossScale(loss_scale);
  spec.average = average;
  spec.divide = OneOf<Divide>("divide", DivideNames(), divide);
  Check(spec);
  return spec;
}

}  // namespace

void BindReduceSpec(py::module_& m) {
  py::class_<Reduce> made(m, "Reduce");
  made.def(py::init(&MakeSpec), py::kw_only(), py::arg("wire"), py::arg("accumulator"),
           py::arg("order"), py::arg("exchange"), py::arg("group_size"), py::arg("aps"),
           py::arg("loss_scale"), py::arg("average"), py::arg("divide"), py::arg("rounding"),
           py::arg("result"))
      .def_property_readonly("order", [](const Reduce& s) { return ToString(s.order); })
      .def_property_readonly("exchange", [](const Reduce& s) { return ToString(s.exchange); })
      .def_property_readonly("group_size",
                             [](const Reduce& s) {
                               return s.group_size == 0 ? std::nullopt
                                                        : std::optional(s.group_size);
                             })
      .def_property_readonly("aps", [](const Reduce& s) { return FromAps(s.aps); })
      .def_readonly("loss_scale", &Reduce::loss_scale)
      .def_readonly("average", &Reduce::average)
      .def_property_readonly("divide", [](const Reduce& s) { return ToString(s.divide); })
      .def(
          "check_world", [](const Reduce& s, int world) { Check(s, world); }, py::arg("world"))
      .def("may_stall", &MayStall, py::arg("world"));
  BindRounding(made);
  m.attr("ORDERS") = Tuple(OrderNames());
  m.attr("EXCHANGES") = Tuple(ExchangeNames());
  m.attr("DIVIDES") = Tuple(DivideNames());
}

}  // namespace cpd
