// SPDX-License-Identifier: Apache-2.0
//
// Measures compressors on one thread against libc's memcpy of the floats, alternately in one run. A
// compressor whose number of bytes varies is compared to 1 GB/s of floats. An encoding call does
// all that a rank does to send a layer: it finds the scale, encodes, and updates the residual.
// Checks the bits first: all backends must give the same bytes, and Decode must return what Round
// gives. Prints one JSON object on each line. The exit status is 1 if bits are wrong.
//
//   bench_compress [--floats N] [--repeats R] [--seed S] [--only PATTERN]... [--list]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/timing.h"
#include "cpd/backend/roster.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/stream.h"

namespace {

using timing::Memory;
using timing::Settings;

constexpr std::int64_t kRow = 4096;                             // values of a layer's row
constexpr std::int64_t kPiece = std::int64_t{1} << 20;          // of a fixed codec, about
constexpr std::int64_t kChecked = (std::int64_t{1} << 22) + 5;  // values whose bits are compared

struct Row {
  std::string name;
  cpd::SharedCodec codec;
  bool decodes = false;
  bool floats = false;  ///< against 1 GB/s of floats, not memcpy
  std::optional<double> bar;
};

/// The rates that rows must reach, as fractions of memcpy's rate: kPlain for codecs without random
/// bits; kResidual for codecs with a residual, which move three times the bytes; TwoPasses for
/// codecs that read values twice. TwoPasses is 3/4 of the rate that a stochastic cast with
/// `random_bits` random bits must reach.
constexpr double kPlain = 0.5;
constexpr double kResidual = 0.3;
constexpr double TwoPasses(int random_bits) {
  return 0.75 * (random_bits <= 8 ? 0.85 : random_bits <= 16 ? 0.65 : 0.45);
}

std::vector<Row> Rows() {
  std::vector<Row> rows;
  const auto add = [&](const char* text, std::optional<double> encode, std::optional<double> decode,
                       int random_bits = 24) {
    const cpd::SharedCodec codec =
        CodecOfRows(cpd::MakeCodec(text, {.random_bits = random_bits}), kRow, 0);
    std::string name = text;
    std::ranges::replace(name, ' ', '_');
    if (random_bits != 24) name += "/random" + std::to_string(random_bits);
    rows.push_back({"compress/encode/" + name, codec, false, false, encode});
    if (random_bits == 24) rows.push_back({"compress/decode/" + name, codec, true, false, decode});
  };
  for (const int random_bits : {24, 16, 8}) {
    add("qsgd bits=4 bucket=512", TwoPasses(random_bits), kPlain, random_bits);
    add("terngrad", TwoPasses(random_bits), kPlain, random_bits);
  }
  add("qsgd bits=4 bucket=512 norm=2", TwoPasses(24), kPlain);
  add("qsgd bits=4 bucket=512 levels=intervals", TwoPasses(24), kPlain);
  add("qsgd bits=2 bucket=128", TwoPasses(24), kPlain);
  add("qsgd bits=8 bucket=512", TwoPasses(24), kPlain);
  add("fp8_rows", kPlain, kPlain);
  add("int8_rows", kPlain, kPlain);
  add("int4", kPlain, kPlain);
  add("int4 stochastic", TwoPasses(24), kPlain);
  add("quantized mxfp4", kPlain, kPlain);
  add("one_bit", kResidual, kPlain);
  add("one_bit bucket=64", kResidual, kPlain);
  add("feedback int4", kResidual, kPlain);
  add("top_k 0.01", 0.2, 0.2);
  add("top_k 0.01 feedback=off", 0.3, 0.3);
  for (const char* text :
       {"qsgd bits=4 bucket=512 coding=elias-dense", "qsgd bits=4 bucket=512 coding=elias-sparse",
        "uniform", "uniform bits=8"}) {
    add(text, 2, 2);
    for (std::size_t i = rows.size() - 2; i < rows.size(); ++i) rows[i].floats = true;
  }
  return rows;
}

/// The arrays of a benchmark row: n inputs and outputs, and memory for the encoded bytes of all
/// pieces of the layer.
struct Arrays {
  std::int64_t n;
  const float* x;
  float* y;
  std::uint8_t* bytes;
};

/// The pieces of a layer: ranges of values that are encoded one after the other. The bytes of piece
/// k begin at k * most in memory.
struct Pieces {
  Pieces(const cpd::Codec& codec, std::int64_t n)
      : n(n),
        piece(codec.is_fixed() ? (kPiece + codec.block() - 1) / codec.block() * codec.block()
                               : codec.block()),
        most(codec.MostBytes(piece)) {}
  [[nodiscard]] std::int64_t count() const { return (n + piece - 1) / piece; }
  std::int64_t n, piece, most;
};

/// Encodes and decodes one layer piece by piece, as a rank does. Holds what lasts from one call to
/// the next: the residual, and the sizes of the encoded pieces.
class Layer {
 public:
  Layer(const Row& row, const Arrays& arrays)
      : codec_(*row.codec), a_(arrays), pieces_(codec_, a_.n), state_(codec_.MakeState(a_.n)) {
    used_.resize(static_cast<std::size_t>(pieces_.count()));
  }

  void Encode() {
    cpd::Piece layer = Begun();
    for (std::int64_t k = 0; k < pieces_.count(); ++k) {
      const cpd::Piece piece = PieceOf(layer, k);
      used_[static_cast<std::size_t>(k)] =
          codec_.Encode(piece, state_.get(), a_.x + piece.begin, a_.bytes + k * pieces_.most);
    }
    if (state_ != nullptr) state_->Commit();
  }
  void Decode() const {
    for (std::int64_t k = 0; k < pieces_.count(); ++k) {
      const std::int64_t begin = k * pieces_.piece;
      codec_.Decode(BytesOf(k), std::min(pieces_.piece, a_.n - begin), 0, 1, a_.y + begin);
    }
  }
  /// Computes the values that Decode must return for the bytes of the next Encode.
  void Round(float* y) {
    const cpd::Piece layer = Begun();
    for (std::int64_t k = 0; k < pieces_.count(); ++k) {
      const cpd::Piece piece = PieceOf(layer, k);
      codec_.Round(piece, state_.get(), a_.x + piece.begin, y + piece.begin);
    }
  }
  /// Returns the bytes for each element that the last Encode or Decode had to move: values, a
  /// residual that is read and written, the values once more if they are measured first, and codes.
  [[nodiscard]] double Moved(bool decodes) const {
    const auto codes = static_cast<double>(std::reduce(used_.begin(), used_.end()));
    const double again = codec_.measured() == cpd::Measured::nothing ? 0 : 4;
    const double residual = state_ == nullptr || state_->Kept().empty() ? 0 : 8;
    return 4 + codes / static_cast<double>(a_.n) + (decodes ? 0 : again + residual);
  }
  [[nodiscard]] std::vector<std::uint8_t> AllBytes() const {
    std::vector<std::uint8_t> all;
    for (std::int64_t k = 0; k < pieces_.count(); ++k) {
      const auto bytes = BytesOf(k);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  cpd::Piece Begun() {
    cpd::Piece layer{.n = a_.n, .key = {.stream = 7}, .size = a_.n};
    if (state_ != nullptr) state_->Begin(layer, a_.x);
    if (codec_.measured() != cpd::Measured::nothing) {
      layer.scale = codec_.Measure(layer, state_.get(), a_.x);
    }
    return layer;
  }
  [[nodiscard]] cpd::Piece PieceOf(cpd::Piece layer, std::int64_t k) const {
    layer.begin = k * pieces_.piece;
    layer.n = std::min(pieces_.piece, a_.n - layer.begin);
    return layer;
  }
  [[nodiscard]] std::span<const std::uint8_t> BytesOf(std::int64_t k) const {
    return {a_.bytes + k * pieces_.most,
            static_cast<std::size_t>(used_[static_cast<std::size_t>(k)])};
  }

  const cpd::Codec& codec_;
  Arrays a_;
  Pieces pieces_;
  std::unique_ptr<cpd::CodecState> state_;
  std::vector<std::int64_t> used_;
};

std::string CheckBits(const Row& row, Arrays a) {
  a.n = std::min(a.n, kChecked);
  std::vector<std::uint8_t> first;
  std::vector<float> rounded(static_cast<std::size_t>(a.n));
  for (const cpd::KernelTable* table : cpd::AvailableKernels()) {
    cpd::ForceKernels(table->name);
    Layer layer(row, a);
    layer.Round(rounded.data());
    layer.Encode();
    layer.Decode();
    if (std::memcmp(rounded.data(), a.y, 4 * rounded.size()) != 0) {
      return std::string(table->name) + " decodes other values than Round gives";
    }
    std::vector<std::uint8_t> bytes = layer.AllBytes();
    if (first.empty())
      first = std::move(bytes);
    else if (first != bytes)
      return std::string(table->name) + " differs from another backend";
  }
  cpd::ForceKernels("");
  return "";
}

bool Measure(const Row& row, const Arrays& a, float* copy, int repeats) {
  const std::string wrong = CheckBits(row, a);
  if (!wrong.empty()) {
    timing::PrintWrong(row.name, wrong);
    return false;
  }
  const std::size_t size = sizeof(float) * static_cast<std::size_t>(a.n);
  Layer layer(row, a);
  layer.Encode();
  const auto work = [&] { row.decodes ? layer.Decode() : layer.Encode(); };
  if (!row.floats) {
    const timing::Side memcpy{[&] { std::memcpy(copy, a.x, size); }, 2 * static_cast<double>(size)};
    timing::Print(row.name, "memcpy", cpd::Kernels().name,
                  timing::Time({work, memcpy.bytes}, memcpy, repeats), row.bar,
                  {8, layer.Moved(row.decodes)});
  } else {
    timing::Print(row.name, "1 GB/s of floats", cpd::Kernels().name,
                  timing::Alone({work, static_cast<double>(size)}, repeats), row.bar,
                  {4, layer.Moved(row.decodes)});
  }
  return true;
}

bool RunRows(const Settings& settings) {
  const std::vector<Row> rows = timing::Chosen(Rows(), settings);
  if (rows.empty()) return true;
  const std::int64_t n = std::max<std::int64_t>(1, settings.floats / kRow) * kRow;
  const auto size = sizeof(float) * static_cast<std::size_t>(n);
  std::int64_t most = 0;
  for (const Row& row : rows) {
    const Pieces pieces(*row.codec, n);
    most = std::max(most, pieces.count() * pieces.most);
  }
  const Memory x(size), y(size), copy(size), bytes(static_cast<std::size_t>(most));
  timing::FillNormal(settings.seed, n, x.floats());
  bool right = true;
  for (const Row& row : rows) {
    right =
        Measure(row, {n, x.floats(), y.floats(), bytes.bytes()}, copy.floats(), settings.repeats) &&
        right;
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  return timing::Guarded("bench_compress", [&] { return RunRows(timing::Parse(argc, argv)); });
}
