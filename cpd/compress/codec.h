// SPDX-License-Identifier: Apache-2.0
//
// What a message holds: the one interface between values and bytes. A codec turns pieces of a
// layer into bytes and back; it moves nothing and adds nothing.
//
// The values that Decode gives for element i of a layer depend on the layer, its rank and i alone,
// never on how the layer was cut into pieces: so every exchange and the virtual ranks have the same
// bits. What depends on a whole layer (a norm, a threshold, an error that is fed back) is taken
// where a call begins, by a CodecState.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpd/export.h"
#include "cpd/numeric/format.h"

namespace cpd {

/// Bytes that no encoder makes.
class CPD_API DamagedBytes : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Values begin … begin + n - 1 of a rank's layer.
struct Piece {
  int layer = 0;  ///< its place in the call, for messages
  std::int64_t begin = 0, n = 0;
  int shift = 0;             ///< the values are encoded times 2^shift
  std::uint64_t stream = 0;  ///< of random bits: those of element i have counter i (streams.h)
};

/// What a codec keeps of one rank's layer from call to call.
class CPD_API CodecState {
 public:
  CodecState() = default;
  CodecState(const CodecState&) = delete;
  CodecState& operator=(const CodecState&) = delete;
  virtual ~CodecState();
  /// A call begins, with the whole layer. May be called again with the same values: only Commit
  /// changes what the next call finds.
  virtual void Begin(const Piece& layer, const float* x) = 0;
  /// The call has succeeded.
  virtual void Commit() = 0;
};

class Codec;
using SharedCodec = std::shared_ptr<const Codec>;

class CPD_API Codec {
 public:
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec();

  /// Its name and options, in one form: equal texts are equal codecs. Ranks compare it.
  [[nodiscard]] virtual std::string text() const = 0;
  /// A format in which decoded values lie; kFp32 where nothing more is known.
  [[nodiscard]] virtual const Format& format() const = 0;
  /// Whether n values always take MostBytes(n), and 4096 k + r values k times the bytes of 4096 and
  /// those of r.
  [[nodiscard]] virtual bool is_fixed() const = 0;
  [[nodiscard]] virtual std::int64_t MostBytes(std::int64_t n) const = 0;
  /// Whether Encode has bytes for NaN and infinities. Else contributions of a call that may meet
  /// NaN travel as what Round gives, in binary32.
  [[nodiscard]] virtual bool has_nan() const { return true; }
  /// Whether it scales values itself, so that APS has nothing to choose.
  [[nodiscard]] virtual bool has_scales() const { return false; }

  /// Writes the bytes of a piece, at most MostBytes(piece.n), and returns how many. x: its values,
  /// any binary32. `state`: the layer's, after Begin; null where MakeState gives null. Throws Error
  /// for a value that it has no code for.
  virtual std::int64_t Encode(const Piece& piece, const CodecState* state, const float* x,
                              std::uint8_t* to) const = 0;
  /// y[i] = (value i * 2^shift) / divisor, each of the two rounded once to binary32; NaN gives
  /// 0x7FC00000. Reads nothing but `bytes`; throws DamagedBytes where these hold no n values.
  virtual void Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
                      float* y) const = 0;
  /// What Decode gives for Encode's bytes, with shift 0 and divisor 1. y may be x. By default it
  /// does both.
  virtual void Round(const Piece& piece, const CodecState* state, const float* x, float* y) const;

  /// For a rank's layer of so many values; null where nothing is kept.
  [[nodiscard]] virtual std::unique_ptr<CodecState> MakeState(std::int64_t size) const;
  /// How running sums and results, which are numbers of `format`, travel beside such contributions:
  /// without loss. By default packed.
  [[nodiscard]] virtual SharedCodec ForSums(const Format& format) const;
};

/// y[i] = (x[i] * 2^shift) / divisor as Decode has it. y may be x.
CPD_API void Unscale(int shift, float divisor, std::int64_t n, const float* x, float* y);

/// What a codec keeps of ranks' layers, a layer by its number in random streams. One call at a time
/// uses it.
class CPD_API CodecStates {
 public:
  /// Made at first. Null where the codec keeps nothing. Throws Error where the layer was kept by
  /// another codec, or with another size.
  CodecState* Of(const Codec& codec, int rank, std::int64_t number, std::int64_t size);

 private:
  struct Kept {
    std::string text;
    std::int64_t size = 0;
    std::unique_ptr<CodecState> state;
  };
  std::map<std::pair<int, std::int64_t>, Kept> kept_;
};

}  // namespace cpd
