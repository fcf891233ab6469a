// SPDX-License-Identifier: Apache-2.0
//
// Binds codecs. A codec is made from its text, and each call applies it to one layer (tensor).
// CodecStates stores what a codec carries over to its next call for each layer, such as residuals.
// python/cpd/compress checks the types of arguments. The GIL is released while values are
// processed.
#include "codecs.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/packed.h"
#include "cpd/compress/scaled_blocks.h"
#include "cpd/compress/stream.h"
#include "cpd/spec/error.h"
#include "gil.h"
#include "views.h"

namespace py = pybind11;

namespace cpd {
namespace {

using Floats = py::array_t<float, py::array::c_style>;
using Integers = py::array_t<std::uint32_t, py::array::c_style>;

// ---- one layer ------------------------------------------------------------------------------

/// The arguments of a codec's call in addition to the values. The call uses the states of rank 0 in
/// `states`. The other members correspond to members of Piece and StreamOptions.
struct LayerCall {
  CodecStates* states;
  std::int64_t number;
  RandomKey key;
  int shift;
  std::optional<float> scale;
  std::optional<Integers> random;
  std::int64_t row;  // 0: the layer is one row; of streams alone
};

/// Applies a codec to one tensor, as layer 0 of rank 0. If the caller passes no states, the codec's
/// new state is discarded afterwards.
class Call {
 public:
  Call(const Codec& codec, const Floats& x, std::optional<LayerCall*> given)
      : codec_(codec), x_(x.data()) {
    layer_.size = layer_.n = x.size();
    if (given) Take(**given);
    if (given && (*given)->states != nullptr) {
      state_ = (*given)->states->Of(codec, {0, (*given)->number}, layer_.size);
    } else {
      own_ = codec.MakeState(layer_.size);
      state_ = own_.get();
    }
  }

  void Begin() {
    if (state_ != nullptr) state_->Begin(layer_, x_);
    if (!is_scaled_ && codec_.measured() != Measured::nothing) {
      layer_.scale = codec_.Measure(layer_, state_, x_);
    }
  }
  void Commit() {
    if (state_ != nullptr) state_->Commit();
  }
  [[nodiscard]] Piece PieceOf(std::int64_t begin, std::int64_t n) const {
    if (begin < 0 || n < 0 || begin > layer_.size || n > layer_.size - begin) {
      throw Error("a piece must lie in the tensor's " + std::to_string(layer_.size) +
                  " values, got " + std::to_string(n) + " from " + std::to_string(begin) + " on");
    }
    Piece piece = layer_;
    piece.begin = begin;
    piece.n = n;
    if (piece.random != nullptr) piece.random += begin;
    return piece;
  }
  [[nodiscard]] const float* at(const Piece& piece) const { return x_ + piece.begin; }
  [[nodiscard]] CodecState* state() const { return state_; }
  [[nodiscard]] std::int64_t size() const { return layer_.size; }
  [[nodiscard]] float scale() const { return layer_.scale; }

 private:
  void Take(const LayerCall& given) {
    layer_.shift = given.shift;
    layer_.key = given.key;
    layer_.scale = given.scale.value_or(0);
    is_scaled_ = given.scale.has_value();
    if (!given.random) return;
    if (given.random->size() != layer_.size) {
      throw Error("random must be as many integers as there are values, " +
                  std::to_string(layer_.size) + ", got " + std::to_string(given.random->size()));
    }
    layer_.random = given.random->data();
  }

  const Codec& codec_;
  const float* x_;
  Piece layer_{};
  bool is_scaled_ = false;
  std::unique_ptr<CodecState> own_;
  CodecState* state_ = nullptr;
};

float MeasureLayer(const BoundCodec& bound, const Floats& x, std::optional<LayerCall*> given) {
  Call call(*bound.codec, x, given);
  WithoutGil([&] { call.Begin(); });
  return call.scale();
}

py::bytes EncodePiece(const BoundCodec& bound, const Floats& x, std::optional<LayerCall*> given,
                      std::int64_t begin, std::optional<std::int64_t> n) {
  const Codec& codec = *bound.codec;
  Call call(codec, x, given);
  const Piece piece = call.PieceOf(begin, n.value_or(call.size() - begin));
  std::vector<std::uint8_t> bytes;
  WithoutGil([&] {
    call.Begin();
    bytes.resize(static_cast<std::size_t>(codec.MostBytes(piece.n, piece.begin % codec.bucket())));
    const std::int64_t used = codec.Encode(call.PieceOf(piece.begin, piece.n), call.state(),
                                           call.at(piece), bytes.data());
    bytes.resize(static_cast<std::size_t>(used));
    if (piece.n == call.size()) call.Commit();
  });
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Floats DecodeBytes(const BoundCodec& bound, const py::bytes& data, std::int64_t n, int shift,
                   float divisor, std::int64_t before) {
  if (n < 0) throw Error("n must not be negative, got " + std::to_string(n));
  const std::string_view text = data;
  Floats values(n);
  float* y = values.mutable_data();
  WithoutGil([&] {
    bound.codec->Decode({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, n, shift,
                        divisor, y, before);
  });
  return values;
}

/// Returns the encoded stream, and the number of bytes of the stream's blocks (StreamSize::blocks).
std::pair<py::bytes, std::int64_t> EncodeLayer(const BoundCodec& bound, const Floats& x,
                                               const LayerCall& given) {
  StreamOptions options{given.key, given.shift, given.row, given.scale, {}};
  if (given.random) {
    options.random = {given.random->data(), static_cast<std::size_t>(given.random->size())};
  }
  py::object held;  // bytes, made as long as they may be and cut
  const auto memory = [&](std::int64_t most) {
    const AcquireGil gil;
    held = py::reinterpret_steal<py::object>(PyBytes_FromStringAndSize(nullptr, most));
    if (!held) throw py::error_already_set();
    return reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(held.ptr()));
  };
  StreamSize size;
  WithoutGil([&] {
    const SharedCodec codec = CodecOfRows(bound.codec, given.row, x.size());
    CodecState* const state =
        given.states == nullptr ? nullptr : given.states->Of(*codec, {0, given.number}, x.size());
    size = EncodeStream(bound.codec, state, options, {x.data(), static_cast<std::size_t>(x.size())},
                        memory);
  });
  PyObject* bytes = held.release().ptr();
  if (_PyBytes_Resize(&bytes, size.all) != 0) throw py::error_already_set();
  return {py::reinterpret_steal<py::bytes>(bytes), size.blocks};
}

std::pair<Floats, StreamInfo> DecodeLayer(const py::bytes& data) {
  const std::string_view text = data;
  Floats values;
  const auto memory = [&](std::int64_t n) {
    const AcquireGil gil;
    values = Floats(n);
    return values.mutable_data();
  };
  StreamInfo info;
  try {
    WithoutGil([&] {
      info =
          DecodeStream({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, memory);
    });
  } catch (const DamagedBytes& damaged) {
    throw py::value_error(damaged.what());
  }
  return {values, info};
}

std::string ToString(Measured measured) {
  return measured == Measured::own ? "own" : measured == Measured::shared ? "shared" : "nothing";
}

/// Returns whether the codec is a format, scaled or not. Other codecs are compressors.
bool IsFormat(const BoundCodec& bound) {
  const Codec* const codec = bound.codec.get();
  return dynamic_cast<const Packed*>(codec) != nullptr ||
         dynamic_cast<const ScaledBlocks*>(codec) != nullptr;
}

void BindCodec(py::module_& m) {
  py::class_<LayerCall>(m, "CodecLayerCall")
      .def(py::init([](GivenStates states, std::int64_t number, std::uint64_t seed,
                       std::uint64_t stream, int shift, std::optional<float> scale,
                       std::optional<Integers> random, std::int64_t row) {
             return LayerCall{
                 states.value_or(nullptr), number, {.seed = seed, .stream = stream}, shift, scale,
                 std::move(random),        row};
           }),
           py::arg("states") = py::none(), py::arg("number") = 0, py::arg("seed") = 0,
           py::arg("stream") = 0, py::arg("shift") = 0, py::arg("scale") = std::nullopt,
           py::arg("random").noconvert() = std::nullopt, py::arg("row") = 0,
           py::keep_alive<1, 2>());
  py::class_<BoundCodec>(m, "Codec")
      .def(py::init([](const std::string& text, const RoundingOptions& rounding,
                       const std::vector<Option>& keys) {
             return BoundCodec{MakeCodec(text, rounding, keys)};
           }),
           py::arg("text"), py::arg("rounding"), py::arg("keys") = std::vector<Option>())
      .def_property_readonly("name", [](const BoundCodec& c) { return c.codec->name(); })
      .def_property_readonly("text", [](const BoundCodec& c) { return c.codec->text(); })
      .def_property_readonly("format", [](const BoundCodec& c) { return c.codec->format(); })
      .def_property_readonly("is_format", &IsFormat)
      .def_property_readonly("is_fixed", [](const BoundCodec& c) { return c.codec->is_fixed(); })
      .def_property_readonly("by_rows", [](const BoundCodec& c) { return c.codec->by_rows(); })
      .def_property_readonly("has_scales",
                             [](const BoundCodec& c) { return c.codec->has_scales(); })
      .def(
          "freezes", [](const BoundCodec& c, std::int64_t n) { return c.codec->Freezes(n); },
          py::arg("n"))
      .def_property_readonly("needs_gradient",
                             [](const BoundCodec& c) { return c.codec->needs_gradient(); })
      .def_property_readonly("block", [](const BoundCodec& c) { return c.codec->block(); })
      .def_property_readonly("bucket", [](const BoundCodec& c) { return c.codec->bucket(); })
      .def_property_readonly("measured",
                             [](const BoundCodec& c) { return ToString(c.codec->measured()); })
      .def(
          "layout",
          [](const BoundCodec& c, const std::vector<std::int64_t>& shape) {
            const RowLayout layout = c.codec->LayoutOf(shape);
            return std::pair(layout.axis, layout.row);
          },
          py::arg("shape"))
      .def(
          "for_rows",
          [](const BoundCodec& c, std::int64_t row) { return BoundCodec{c.codec->ForRows(row)}; },
          py::arg("row"))
      .def(
          "most_bytes",
          [](const BoundCodec& c, std::int64_t n, std::int64_t before) {
            return c.codec->MostBytes(n, before);
          },
          py::arg("n"), py::arg("before") = 0)
      .def("measure", &MeasureLayer, py::arg("x").noconvert(), py::arg("given") = py::none())
      .def("encode", &EncodePiece, py::arg("x").noconvert(), py::arg("given") = py::none(),
           py::arg("begin") = 0, py::arg("n") = std::nullopt)
      .def("encode_stream", &EncodeLayer, py::arg("x").noconvert(), py::arg("given"))
      .def("decode", &DecodeBytes, py::arg("data"), py::arg("n"), py::arg("shift") = 0,
           py::arg("divisor") = 1.0F, py::arg("before") = 0);
  py::class_<StreamInfo>(m, "StreamInfo")
      .def_readonly("codec", &StreamInfo::codec)
      .def_readonly("shift", &StreamInfo::shift)
      .def_readonly("count", &StreamInfo::count)
      .def_readonly("row", &StreamInfo::row)
      .def_readonly("bytes", &StreamInfo::bytes)
      .def_readonly("scale", &StreamInfo::scale);
  m.def("decode_stream", &DecodeLayer, py::arg("data"));
  m.def("compressors", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string>> all;
    for (const CodecInfo& one : Compressors()) {
      all.emplace_back(one.name, one.options, one.source, one.summary);
    }
    return all;
  });
}

// ---- states ---------------------------------------------------------------------------------

constexpr const char* kStages[] = {"contribution", "result"};

/// A saved state as a tuple: the rank, the layer's number, the stage, the codec's text, the number
/// of values of the layer or slice, the index in the layer of the first value (None: the index was
/// not saved), and the values.
using Kept = std::tuple<int, std::int64_t, std::string, std::string, std::int64_t,
                        std::optional<std::int64_t>, Floats>;

std::vector<Kept> SaveStates(const CodecStates& states) {
  std::vector<Kept> all;
  for (const auto& [key, kept] : states.Save()) {
    all.emplace_back(key.rank, key.number, kStages[static_cast<int>(key.stage)], kept.text,
                     kept.size, kept.begin,
                     Floats(static_cast<py::ssize_t>(kept.values.size()), kept.values.data()));
  }
  return all;
}

Stage StageNamed(const std::string& name) {
  const auto* const found = std::ranges::find(kStages, name);
  if (found == std::end(kStages)) throw Error("no such stage: '" + name + "'");
  return static_cast<Stage>(found - kStages);
}

/// The rank to which stored states belong, as (world, rank). The rank is None if the states belong
/// to all ranks.
using OwnerFields = std::pair<int, std::optional<int>>;

std::optional<OwnerFields> OwnerOf(const CodecStates& states) {
  const auto owner = states.owner();
  if (!owner) return std::nullopt;
  return OwnerFields{owner->world, owner->rank};
}

void ClaimStates(CodecStates& states, int world, std::optional<int> rank) {
  states.Claim({world, rank});
}

void LoadStates(CodecStates& states, const std::vector<Kept>& all,
                const std::optional<OwnerFields>& owner) {
  std::map<CodecStates::Key, CodecStates::Kept> kept;
  for (const auto& [rank, number, stage, text, size, begin, values] : all) {
    kept[{rank, number, StageNamed(stage)}] = {
        text, size, std::vector<float>(values.data(), values.data() + values.size()), begin};
  }
  if (!owner) return states.Load(std::move(kept));
  states.Load(std::move(kept), CodecStates::Owner{owner->first, owner->second});
}

/// Returns a tuple for each gradient that was set: the layer's number, the rank (None: all ranks),
/// and the gradient's root mean square.
std::vector<std::tuple<std::int64_t, std::optional<int>, float>> GradientsOf(
    const CodecStates& states) {
  std::vector<std::tuple<std::int64_t, std::optional<int>, float>> all;
  for (const auto& [key, rms] : states.gradients()) all.emplace_back(key.first, key.second, rms);
  return all;
}

void ResetStates(CodecStates& states, std::optional<std::int64_t> number) {
  if (number) {
    states.Reset(*number);
  } else {
    states.Reset();
  }
}

void BindStates(py::module_& m) {
  py::class_<CodecStates>(m, "CodecStates")
      .def(py::init<>())
      .def("save", &SaveStates)
      .def("load", &LoadStates, py::arg("kept"), py::arg("owner") = std::nullopt)
      .def("claim", &ClaimStates, py::arg("world"), py::arg("rank"))
      .def_property_readonly("owner", &OwnerOf)
      .def("set_gradient", &CodecStates::SetGradient, py::arg("number"), py::arg("rank"),
           py::arg("rms"))
      .def_property_readonly("gradients", &GradientsOf)
      .def("reset", &ResetStates, py::arg("number") = std::nullopt);
}

}  // namespace

void BindCodecs(py::module_& m) {
  BindStates(m);
  BindCodec(m);
}

}  // namespace cpd
