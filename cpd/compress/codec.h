// SPDX-License-Identifier: Apache-2.0
//
// What a message holds: the one interface between values and bytes. A codec turns pieces of a
// layer into bytes and back; it moves nothing and adds nothing.
//
// The values that Decode gives for element i of a layer depend on the layer, its rank and i alone,
// never on how the layer was cut into pieces: so every exchange and the virtual ranks have the same
// bits. What depends on a whole layer (a threshold, an error that is fed back) is taken where a
// call begins, by a CodecState, or is one number that Measure gives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpd/export.h"
#include "cpd/spec/format.h"

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
  std::int64_t size = 0;     ///< of the layer; 0: no more is known than the piece
  float scale = 0;           ///< what Measure gave; Measured::shared: the largest of all ranks
  const std::uint32_t* random = nullptr;  ///< integers for the piece's elements, not the stream's
};

/// A number of the whole layer that a codec needs before it can encode.
enum class Measured : std::uint8_t {
  nothing,
  own,  ///< each rank its own
  /// The largest of all ranks, which they agree on ahead. Values are then encoded in units of it:
  /// Decode and Round give multiples, and the reduction multiplies its sums by it, rounded once.
  shared,
};

/// What a codec keeps of one rank's layer from call to call, and of the call that is under way.
class CPD_API CodecState {
 public:
  CodecState() = default;
  CodecState(const CodecState&) = delete;
  CodecState& operator=(const CodecState&) = delete;
  virtual ~CodecState();
  /// A call begins, with the whole layer (or, for results, a slice of it, from `layer.begin` on,
  /// whose values come piece by piece: x is null). May be called again with the same values: only
  /// Commit changes what the next call finds.
  virtual void Begin(const Piece& layer, const float* x) = 0;
  /// The call has succeeded, and every value was encoded or rounded.
  virtual void Commit() = 0;
  /// What the next call finds, for checkpoints; empty: nothing.
  [[nodiscard]] virtual std::vector<float> Kept() const;
  /// Puts it back. Throws Error for another number of values.
  virtual void Restore(std::span<const float> kept);
};

/// How a codec that goes by rows takes a layer: a row's values side by side.
struct RowLayout {
  std::optional<int> axis{};  ///< of the layer's, moved behind the others; none: as it is
  std::int64_t row = 0;       ///< values of a row; 0: the codec does not go by rows
  bool operator==(const RowLayout&) const = default;
};

class Codec;
using SharedCodec = std::shared_ptr<const Codec>;

class CPD_API Codec {
 public:
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec();

  /// Its name and options as MakeCodec (codecs.h) takes them, in one form.
  [[nodiscard]] virtual std::string name() const = 0;
  /// The same with the options of its rounding: equal texts are equal codecs. Ranks compare it.
  [[nodiscard]] virtual std::string text() const = 0;
  /// A format in which decoded values lie; kFp32 where nothing more is known.
  [[nodiscard]] virtual const Format& format() const = 0;
  /// Whether n values always take MostBytes(n, before), and block() * k + r values k times the
  /// bytes of block() and those of r.
  [[nodiscard]] virtual bool is_fixed() const = 0;
  /// Of a piece whose first bucket has `before` values ahead of it (begin mod bucket()).
  [[nodiscard]] virtual std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const = 0;
  /// Values that lie together in a message, counted from where a piece of the layer begins: a
  /// multiple of 8 and of bucket(), from 4096 on.
  [[nodiscard]] virtual std::int64_t block() const { return 4096; }
  /// Layers are cut at multiples of so many values where that can be: values of a bucket have
  /// something in common that costs bytes. At most kMostBucket.
  [[nodiscard]] virtual std::int64_t bucket() const { return 1; }
  /// Whether Encode has bytes for NaN and infinities. Else contributions of a call that may meet
  /// NaN travel as what Round gives, in binary32.
  [[nodiscard]] virtual bool has_nan() const { return true; }
  /// Whether it scales values itself, so that APS has nothing to choose.
  [[nodiscard]] virtual bool has_scales() const { return false; }
  /// Whether partial sums may travel from rank to rank in its contributions' place (exchanges ring
  /// and hierarchical): what it does is then a cast of each rank's values.
  [[nodiscard]] virtual bool may_hop() const { return false; }

  [[nodiscard]] virtual Measured measured() const { return Measured::nothing; }
  /// That number of a layer, not negative, finite. x: the whole layer; state: after Begin.
  [[nodiscard]] virtual float Measure(const Piece& layer, CodecState* state, const float* x) const;

  /// Writes the bytes of a piece, at most MostBytes of it, and returns how many. x: its values,
  /// any binary32; where a piece cuts a bucket, those of the layer around it are read too
  /// (x[-piece.begin] … x[piece.size - piece.begin - 1]). `state`: the layer's, after Begin; null
  /// where MakeState gives null. Pieces may be encoded side by side, in any order, each again: what
  /// a state takes down of a piece is the same each time. Throws Error for a value that it has no
  /// code for.
  virtual std::int64_t Encode(const Piece& piece, CodecState* state, const float* x,
                              std::uint8_t* to) const = 0;
  /// y[i] = (value i * 2^shift) / divisor, each of the two rounded once to binary32; NaN gives
  /// 0x7FC00000. `before`: as for MostBytes. Reads nothing but `bytes`; throws DamagedBytes where
  /// these hold no n values.
  virtual void Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
                      float* y, std::int64_t before = 0) const = 0;
  /// What Decode gives for Encode's bytes, with shift 0 and divisor 1. y may be x, unless the piece
  /// cuts a bucket. By default it does both.
  virtual void Round(const Piece& piece, CodecState* state, const float* x, float* y) const;

  /// For a rank's layer of so many values; null where nothing is kept.
  [[nodiscard]] virtual std::unique_ptr<CodecState> MakeState(std::int64_t size) const;
  /// Whether it goes by a layer's rows, so that ForRows gives another codec.
  [[nodiscard]] virtual bool by_rows() const { return false; }
  /// The layout of a layer of this shape. By default a row is what one index of the first of two or
  /// more dimensions has; a vector is one row. Throws Error for an axis that the shape has not.
  [[nodiscard]] virtual RowLayout LayoutOf(std::span<const std::int64_t> shape) const;
  /// For layers whose rows have so many values (at most kMostBucket; longer ones are cut there).
  [[nodiscard]] virtual SharedCodec ForRows(std::int64_t row) const;
  /// How running sums and results, which are numbers of `format`, travel beside such contributions:
  /// without loss. By default packed.
  [[nodiscard]] virtual SharedCodec ForSums(const Format& format) const;
  /// How an owner's results travel to `world` ranks (Exchange::owner): by default null, which means
  /// as ForSums has it. A codec that encodes sums again, with loss, is given whole buckets and no
  /// layer around them; it measures nothing, and its block() and bucket() are this one's.
  [[nodiscard]] virtual SharedCodec ForResults(const Format& format, int world) const;
};

constexpr std::int64_t kMostBucket = 1 << 16;

/// A block() for a bucket: the least multiple of it and of 8 that has 4096 values.
CPD_API std::int64_t BlockOfBucket(std::int64_t bucket);

/// y[i] = (x[i] * 2^shift) / divisor as Decode has it. y may be x.
CPD_API void Unscale(int shift, float divisor, std::int64_t n, const float* x, float* y);

/// Whether no value is NaN or infinite.
CPD_API bool IsFinite(std::int64_t n, const float* x);

/// Whose states: of what a rank contributes, or of the results that it owns.
enum class Stage : std::uint8_t { contribution, result };

/// What a codec keeps of ranks' layers, a layer by its number in random streams. One call at a time
/// uses it. It knows whose it is, by the first call that keeps something in it.
class CPD_API CodecStates {
 public:
  /// A rank of so many; no rank: all of them, virtual ones.
  struct Owner {
    int world = 1;
    std::optional<int> rank{};
    bool operator==(const Owner&) const = default;
  };
  /// One layer's.
  struct Key {
    int rank = 0;
    std::int64_t number = 0;
    Stage stage = Stage::contribution;
    auto operator<=>(const Key&) const = default;
  };
  struct Kept {
    std::string text;       ///< the codec's
    std::int64_t size = 0;  ///< values of the layer, or of the slice
    std::vector<float> values;
  };

  CodecStates();
  ~CodecStates();
  CodecStates(CodecStates&&) noexcept;
  CodecStates& operator=(CodecStates&&) noexcept;

  /// Made at first, with what was restored. Null where the codec keeps nothing. Throws Error where
  /// the layer was kept by another codec, or with another size.
  CodecState* Of(const Codec& codec, const Key& key, std::int64_t size);
  /// Before a call of `owner`: what it keeps is theirs. Throws Error where something of another's
  /// is kept that is not 0; zeros, which a call that failed leaves too, are forgotten.
  void Claim(const Owner& owner);
  /// None where nothing is kept, unless Load told.
  [[nodiscard]] std::optional<Owner> owner() const;
  /// Forgets a layer on all ranks; all layers, and whose they were.
  void Reset(std::int64_t number);
  void Reset();
  /// For checkpoints: every layer of which something is kept.
  [[nodiscard]] std::map<Key, Kept> Save() const;
  void Load(std::map<Key, Kept> kept, std::optional<Owner> owner = {});

 private:
  struct Entry;
  std::map<Key, Entry> entries_;
  std::optional<Owner> owner_;
  bool owner_loaded_ = false;  // by Load
};

CPD_API std::string ToString(const CodecStates::Owner& owner);

}  // namespace cpd
