// SPDX-License-Identifier: Apache-2.0
//
// CodecOnGpu, what a codec that has kernels does with layers and messages in a GPU's memory: the
// bits that it gives on the CPU. All is queued; the host waits only where a function says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cpd/backend/queue.h"
#include "cpd/compress/codec.h"

namespace cpd {

/// Memory of the queue's GPU for n values, which is released behind what is queued by then.
CPD_API std::shared_ptr<float> QueuedValues(const SharedQueue& queue, std::int64_t n);

/// A rank's layer during a call, whose values must live as long.
class CPD_API LayerOnGpu {
 public:
  LayerOnGpu() = default;
  LayerOnGpu(const LayerOnGpu&) = delete;
  LayerOnGpu& operator=(const LayerOnGpu&) = delete;
  virtual ~LayerOnGpu();
  /// Codec::Measure; waits. By default nothing is measured: 0.
  [[nodiscard]] virtual float Measure() const { return 0; }
  /// Codec::Largest, after waiting for the GPU. The default, nothing, means the largest magnitude
  /// of the layer's values.
  [[nodiscard]] virtual std::optional<float> Largest() const { return std::nullopt; }
  /// Codec::Round of all that began; adds what is lost to *counts, in the GPU's memory, unless it
  /// is null. y may be x where it is.
  virtual void Round(const Piece& layer, float* y, SegmentCounts* counts) const = 0;
  /// Codec::Encode. By default the codec does not encode (CodecOnGpu::encodes): throws.
  virtual void Encode(const Piece& piece, std::uint8_t* to) const;
  /// LayerBytes, of a codec that has no fixed sizes: queues what counts them, and returns what
  /// waits for it; to be called before Round replaces x. By default the codec does not count them
  /// (CodecOnGpu::counts_bytes): throws.
  [[nodiscard]] virtual std::function<std::int64_t()> CountBytes(const Piece& layer) const;
};

/// What a codec keeps of a layer, or of the slice of its results from value `begin` on, between
/// calls; null where it keeps nothing. Its Begin is not called.
struct StateOnGpu {
  CodecState* state = nullptr;
  std::int64_t begin = 0;
};

class CPD_API CodecOnGpu {
 public:
  CodecOnGpu() = default;
  CodecOnGpu(const CodecOnGpu&) = delete;
  CodecOnGpu& operator=(const CodecOnGpu&) = delete;
  virtual ~CodecOnGpu();
  /// Begins with a whole layer, or with a slice that has nothing around it (layer.size is 0), from
  /// a bucket's beginning on.
  [[nodiscard]] virtual std::unique_ptr<LayerOnGpu> Begin(const SharedQueue& queue,
                                                          const Piece& layer,
                                                          const StateOnGpu& state,
                                                          const float* x) const = 0;
  /// Whether it encodes and decodes, too. If not, messages are made on the host.
  [[nodiscard]] virtual bool encodes() const { return true; }
  /// Whether it counts the bytes of messages that have no fixed sizes.
  [[nodiscard]] virtual bool counts_bytes() const { return false; }
  /// Codec::Decode of a message that holds n values; one that no encoder makes is a fault
  /// (cuda_faults.h). By default the codec does not decode: throws.
  virtual void Decode(const Queue& queue, const std::uint8_t* bytes, std::int64_t n, int shift,
                      float divisor, float* y, std::int64_t before) const;
};

}  // namespace cpd
