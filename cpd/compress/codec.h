// SPDX-License-Identifier: Apache-2.0
//
// Codec: the interface of a reversible encoding. A codec encodes pieces (ranges of a layer's
// values) into the bytes of messages, and decodes the bytes. It neither sends nor adds.
//
// The value that Decode gives for element i of a layer depends only on the layer, its rank and i,
// never on the division of the layer into pieces (ranges of a layer's values). So every exchange
// and the virtual ranks have the same bits. A quantity that depends on a whole layer (a threshold,
// an error that is fed back) is computed when a call begins, by a CodecState, or is a number that
// Measure returns.
#pragma once

#include <cstdint>
#include <functional>
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
#include "cpd/spec/random_key.h"

namespace cpd {

class Queue;           // backend/queue.h
struct SegmentCounts;  // backend/message_calls.h
using SharedQueue = std::shared_ptr<const Queue>;

/// Thrown if the bytes of a message are not bytes that an encoder writes.
class CPD_API DamagedBytes : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A piece: values begin … begin + n - 1 of a rank's layer.
struct Piece {
  int layer = 0;  ///< its index in the call, for error texts
  std::int64_t begin = 0, n = 0;
  int shift = 0;          ///< values are encoded times 2^shift, rounded once to binary32
  RandomKey key{};        ///< key of the random bits: element i has counter i (streams.h)
  std::int64_t size = 0;  ///< number of values of the layer; 0: only the piece is known
  float scale = 0;        ///< from Measure; Measured::shared: the largest of all ranks
  const std::uint32_t* random = nullptr;  ///< the elements' random integers; null: the key's
};

/// The kind of number, such as a norm, that a codec must measure over a whole layer before it can
/// encode a piece (a range of the layer's values).
enum class Measured : std::uint8_t {
  nothing,
  own,  ///< each rank uses its own number
  /// Each rank measures a number. Ranks exchange these numbers before encoding, and all use the
  /// largest one as the unit of the values. Decode and Round give multiples of the unit, and the
  /// reduction multiplies its sums by the unit, rounded once.
  shared,
};

/// The state of a codec for one layer of one rank. The state lasts between calls and during a call.
class CPD_API CodecState {
 public:
  CodecState() = default;
  CodecState(const CodecState&) = delete;
  CodecState& operator=(const CodecState&) = delete;
  virtual ~CodecState();
  /// Begins a call that computes on the queue's device. For contributions, `x` is the whole layer,
  /// on that device. For results, `layer` is the slice of the layer from `layer.begin` on. The
  /// slice's values follow later, one range at a time, so x is null. May be called again with the
  /// same values, because only Commit changes the state that the next call finds.
  virtual void BeginOn(const SharedQueue& queue, const Piece& layer, const float* x) = 0;
  /// Calls BeginOn with the CPU's queue.
  void Begin(const Piece& layer, const float* x);
  /// Frees the memory that the call needed to encode or round the layer, in the queue's order.
  /// Until the next BeginOn, the state does not use the queue, and the queue's stream may end. By
  /// default, Free does nothing.
  virtual void Free();
  /// Makes the new state final after a call that succeeded, so that the next call finds it. Call it
  /// after every value was encoded or rounded.
  virtual void Commit() = 0;
  /// Sets the root mean square of the layer's gradient for later calls (Codec::needs_gradient).
  /// `rms` must be finite and not negative. By default, the number is not used.
  virtual void SetGradient(float rms);
  /// After Begin, returns the number of bits for each value that the codec chose for the layer,
  /// before any entropy coding. 0 means that all values are equal. Returns none if the codec does
  /// not choose.
  [[nodiscard]] virtual std::optional<int> ChosenBits() const;
  /// Returns the state that the next call will find, for checkpoints. Returns an empty vector if
  /// there is no state.
  [[nodiscard]] virtual std::vector<float> Kept() const;
  /// Restores the state from `kept`, which Kept returned earlier. Throws Error if `kept` does not
  /// have the number of values that this state stores.
  virtual void Restore(std::span<const float> kept);
};

/// The layout of a layer for a codec that works on rows. The values of a row are contiguous.
struct RowLayout {
  std::optional<int> axis{};  ///< the layer's axis that is moved behind the others; none: no change
  std::int64_t row = 0;       ///< the number of values of a row; 0: the codec does not work on rows
  bool operator==(const RowLayout&) const = default;
};

/// The functions of a codec that compute on every device. All other functions compute only on the
/// CPU.
enum class KernelSupport : std::uint8_t {
  none,
  round,  ///< all functions but EncodeOn and DecodeOn: messages are made on the CPU
  all,
};

class Codec;
using SharedCodec = std::shared_ptr<const Codec>;

class CPD_API Codec {
 public:
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec();

  /// Returns the codec's name and options in canonical form, which MakeCodec (codecs.h) reads.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns name() and the options of the rounding. Equal texts mean equal codecs; ranks compare
  /// the texts.
  [[nodiscard]] virtual std::string text() const = 0;
  /// Returns a format that contains every decoded value; kFp32 if no narrower format is known.
  [[nodiscard]] virtual const Format& format() const = 0;
  /// Returns whether messages have a fixed size: n values always take MostBytes(n, before) bytes,
  /// and block() * k + r values take k times the bytes of block() values plus the bytes of r
  /// values.
  [[nodiscard]] virtual bool is_fixed() const = 0;
  /// Returns an upper bound of the bytes of a piece (a range of a layer's values) of n values.
  /// `before` (begin mod bucket()) is the number of values of the piece's first bucket that come
  /// before the piece.
  [[nodiscard]] virtual std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const = 0;
  /// Returns the number of values in a block, which a message stores together: a multiple of 8 and
  /// of bucket(), at least 4096. Blocks are counted from the first value of a piece (a range of a
  /// layer's values).
  [[nodiscard]] virtual std::int64_t block() const { return 4096; }
  /// Returns the length of a bucket: the number of values that share a part of a message, such as a
  /// norm; at most kMostBucket. Layers are cut at multiples of bucket() where possible.
  [[nodiscard]] virtual std::int64_t bucket() const { return 1; }
  /// Returns whether Encode can encode NaN and infinities. If it cannot, and values or sums of a
  /// call may be NaN or infinite, ranks send binary32 numbers as contributions: the results of
  /// Round.
  [[nodiscard]] virtual bool has_nan() const { return true; }
  /// Returns whether the codec computes scales itself. APS, which chooses a power of two for each
  /// tensor, is then not supported.
  [[nodiscard]] virtual bool has_scales() const { return false; }
  /// Returns whether ranks may send partial sums in place of contributions, as the exchanges `ring`
  /// and `hierarchical` do. The codec is then only a cast of each rank's values.
  [[nodiscard]] virtual bool may_hop() const { return false; }

  /// Returns whether some values of a layer of n values become zero in every call, whatever the
  /// values are. If a layer holds gradients, the parameters of these values never change.
  [[nodiscard]] virtual bool Freezes(std::int64_t n) const;
  /// Returns whether a layer's state must know the root mean square of the layer's gradient before
  /// Begin (CodecState::SetGradient). If the number was not set, Begin and CodecStates::Of throw
  /// Error.
  [[nodiscard]] virtual bool needs_gradient() const { return false; }

  [[nodiscard]] virtual Measured measured() const { return Measured::nothing; }
  [[nodiscard]] virtual KernelSupport kernels() const { return KernelSupport::none; }
  /// Returns whether BytesOn counts bytes on every device.
  [[nodiscard]] virtual bool counts_bytes() const { return is_fixed(); }

  // These functions compute on the queue's device, which holds values and bytes. A function that
  // returns a number waits for the device. `state` is the layer's state, after BeginOn on that
  // device; null if MakeState returns null. A codec gets the queue of a device other than the CPU
  // only for operations that its kernels() support.

  /// Measures the whole layer `x`. Returns the number that measured() names, such as a norm; it is
  /// finite and not negative.
  [[nodiscard]] virtual float MeasureOn(const Queue& queue, const Piece& layer, CodecState* state,
                                        const float* x) const;
  /// Returns the largest finite magnitude that the codec will encode, from which APS computes the
  /// shift of a layer. Only for codecs without scales. Call it after BeginOn with shift 0. The
  /// default result, none, stands for the largest magnitude of the layer's values.
  [[nodiscard]] virtual std::optional<float> LargestOn(const Queue& queue,
                                                       const CodecState& state) const;
  /// Writes the bytes of a piece (a range of a layer's values), at most MostBytes, and returns
  /// their number. `x` points to the piece's values, which may be any binary32 values. If a piece
  /// cuts a bucket, the values of the layer around the piece are read too (x[-piece.begin] …
  /// x[piece.size - piece.begin - 1]). Pieces may be encoded concurrently, in any order and
  /// repeatedly. A piece that is encoded again leaves the same numbers in the state. Throws Error
  /// for a value without a code.
  virtual std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state,
                                const float* x, std::uint8_t* to) const = 0;
  /// Writes y[i] = (value i * 2^shift) / divisor, where each of the two operations is rounded once
  /// to binary32. NaN gives 0x7FC00000. `before` has the same meaning as for MostBytes. Reads only
  /// `bytes`. If `bytes` do not hold n values, throws DamagedBytes on the CPU, and reports a fault
  /// on other devices (faults.h).
  virtual void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                        int shift, float divisor, float* y, std::int64_t before = 0) const = 0;
  /// Writes the values that DecodeOn gives for EncodeOn's bytes, with shift 0 and divisor 1. Unless
  /// `counts` is null, adds the piece's SegmentCounts (such as the number of NaN and infinities) to
  /// *counts, in device memory. y may be x, unless the piece (a range of a layer's values) cuts a
  /// bucket. The default encodes and decodes on the CPU, and counts nothing.
  virtual void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                       float* y, SegmentCounts* counts = nullptr) const;
  /// Queues work that counts the bytes of a layer (LayerBytes). Returns a function that waits for
  /// the work and returns the number of bytes. If RoundOn writes to x, call BytesOn before RoundOn.
  /// The default counts on the CPU.
  [[nodiscard]] virtual std::function<std::int64_t()> BytesOn(const SharedQueue& queue,
                                                              const Piece& layer, CodecState* state,
                                                              const float* x) const;

  // Measure, Largest, Encode, Decode and Round call MeasureOn, LargestOn, EncodeOn, DecodeOn and
  // RoundOn on the CPU.
  [[nodiscard]] float Measure(const Piece& layer, CodecState* state, const float* x) const;
  [[nodiscard]] std::optional<float> Largest(const CodecState& state) const;
  std::int64_t Encode(const Piece& piece, CodecState* state, const float* x,
                      std::uint8_t* to) const;
  void Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
              float* y, std::int64_t before = 0) const;
  void Round(const Piece& piece, CodecState* state, const float* x, float* y) const;

  /// Returns a state for a rank's layer of `size` values; null if the codec needs no state.
  [[nodiscard]] virtual std::unique_ptr<CodecState> MakeState(std::int64_t size) const;
  /// Returns whether the codec depends on the length of a layer's rows. If so, use the codec that
  /// ForRows returns.
  [[nodiscard]] virtual bool by_rows() const { return false; }
  /// Returns the layout of a layer of this shape. By default, a row holds the values of one index
  /// of the first dimension; a vector is one row. Throws Error for an axis that the shape lacks.
  [[nodiscard]] virtual RowLayout LayoutOf(std::span<const std::int64_t> shape) const;
  /// Returns the codec for layers whose rows have `row` values. Longer rows are cut at kMostBucket
  /// values. Returns null unless by_rows().
  [[nodiscard]] virtual SharedCodec ForRows(std::int64_t row) const;
  /// Returns the codec that sends running sums and results without loss. Both are numbers of
  /// `format`. By default, the codec is Packed.
  [[nodiscard]] virtual SharedCodec ForSums(const Format& format) const;
  /// Returns the codec that sends an owner's results to `world` ranks (Exchange::owner). The
  /// default result, null, stands for the codec of ForSums. A returned codec may encode the sums
  /// again with loss. Such a codec gets whole buckets, and no values around these buckets. Its
  /// measured() must be Measured::nothing, and its block() and bucket() must equal block() and
  /// bucket() of this codec.
  [[nodiscard]] virtual SharedCodec ForResults(const Format& format, int world) const;
};

constexpr std::int64_t kMostBucket = 1 << 16;

/// Returns the bytes that a codec needs for a layer: the bytes of the layer's blocks, from the
/// first value on, as in a stream (stream.h). If messages cut the layer elsewhere, the number
/// differs a little. Call state->Begin with the layer first. A block with NaN or infinities, for
/// which the codec has no bytes, counts in binary32.
CPD_API std::int64_t LayerBytes(const Codec& codec, const Piece& layer, CodecState* state,
                                const float* x);

/// Returns the least multiple of `bucket` and of 8 that is at least 4096. Codecs with buckets use
/// it as the length of a block.
CPD_API std::int64_t BlockOfBucket(std::int64_t bucket);

/// Writes y[i] = (x[i] * 2^shift) / divisor. The product and the quotient are each rounded once to
/// binary32. NaN gives 0x7FC00000. y may be x.
CPD_API void Unscale(int shift, float divisor, std::int64_t n, const float* x, float* y);

/// Returns whether all values are finite.
CPD_API bool IsFinite(std::int64_t n, const float* x);

/// The use of a state: for a rank's contribution, or for the results that the rank owns.
enum class Stage : std::uint8_t { contribution, result };

/// The states of codecs between calls, by rank and layer. A layer is identified by its number in
/// random streams. Only one call at a time may use an object. The first call that stores a state
/// sets the owner (one rank, or all ranks). Calls of another owner throw Error.
class CPD_API CodecStates {
 public:
  /// The rank, of `world` ranks, to which the states belong. If one process computes all ranks
  /// (virtual ranks), `rank` is not set, and the states belong to all of them.
  struct Owner {
    int world = 1;
    std::optional<int> rank{};
    bool operator==(const Owner&) const = default;
  };
  /// Identifies a stored state: the rank, the layer, and whether the state is for contributions or
  /// for results.
  struct Key {
    int rank = 0;
    std::int64_t number = 0;
    Stage stage = Stage::contribution;
    auto operator<=>(const Key&) const = default;
  };
  /// The index in its layer at which a slice of results begins; 0 for a whole layer.
  struct Begin {
    std::int64_t now = 0;
    /// The index at which the rank's slice began in version 0.7, in which slice r of each layer
    /// belonged to rank r. Used for a saved state without a `begin`.
    std::int64_t unrotated = 0;
  };
  struct Kept {
    std::string text;       ///< the codec's text()
    std::int64_t size = 0;  ///< number of values of the layer, or of the slice
    std::vector<float> values;
    std::optional<std::int64_t> begin{};  ///< the first value's index in the layer; none: not saved
  };

  CodecStates();
  ~CodecStates();
  CodecStates(CodecStates&&) noexcept;
  CodecStates& operator=(CodecStates&&) noexcept;

  /// Returns the layer's state. The first use makes the state from the data that Load restored.
  /// Returns null if the codec has no state. Throws Error if the layer's state belongs to another
  /// codec, another size or another slice. Also throws Error if the codec needs the gradient's root
  /// mean square, and it was not set.
  CodecState* Of(const Codec& codec, const Key& key, std::int64_t size) {
    return Of(codec, key, size, Begin{});
  }
  CodecState* Of(const Codec& codec, const Key& key, std::int64_t size, const Begin& begin);
  /// Sets the root mean square of a layer's gradient for later calls. With a rank, sets it for that
  /// rank. Without a rank, sets it for all ranks, and replaces what was set for single ranks.
  /// Throws Error if `rms` is negative or not finite.
  void SetGradient(std::int64_t number, std::optional<int> rank, float rms);
  /// The gradients' root mean squares that SetGradient has set, by layer number and rank. No rank:
  /// the number is for all ranks.
  using Gradients = std::map<std::pair<std::int64_t, std::optional<int>>, float>;
  [[nodiscard]] const Gradients& gradients() const { return gradients_; }
  /// Makes `owner` the owner of the states, before its call uses them. Throws Error if a nonzero
  /// value of another owner is stored. If all values of another owner are zero, for example after a
  /// failed call, discards them.
  void Claim(const Owner& owner);
  /// Returns the owner. Returns none if no state is stored, unless Load set an owner.
  [[nodiscard]] std::optional<Owner> owner() const;
  /// Discards the states and gradients of a layer on all ranks.
  void Reset(std::int64_t number);
  /// Discards all states, all gradients and the owner.
  void Reset();
  /// Returns every layer with a stored state, for checkpoints.
  [[nodiscard]] std::map<Key, Kept> Save() const;
  /// Replaces all states by `kept` and the owner by `owner`, and discards all gradients.
  void Load(std::map<Key, Kept> kept, std::optional<Owner> owner = {});

 private:
  struct Entry;
  [[nodiscard]] std::optional<float> GradientOf(const Key& key) const;
  CodecState* FindOrMake(const Codec& codec, const Key& key, std::int64_t size, const Begin& begin);

  std::map<Key, Entry> entries_;
  Gradients gradients_;
  std::optional<Owner> owner_;
  bool owner_loaded_ = false;  // true if Load set owner_
};

CPD_API std::string ToString(const CodecStates::Owner& owner);

}  // namespace cpd
