// SPDX-License-Identifier: Apache-2.0
//
// What a rank computes on messages: casts its contributions into them, folds what came, unpacks
// results. The arithmetic is reduction.h's, the codes are ops/reduce.h's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/comm/layout.h"
#include "cpd/comm/link.h"
#include "cpd/comm/reduction.h"

namespace cpd {

/// One rank's layers in one call.
struct Layers {
  std::vector<std::int64_t> sizes;
  std::vector<const float*> x;
  std::vector<float*> out;              ///< where value out_begin[l] of layer l goes
  std::vector<std::int64_t> out_begin;  ///< the first value that this rank keeps
  std::vector<int> shifts;
};

class Work {
 public:
  /// `plain`: everything travels as binary32, for values that the formats have no code for.
  /// `progress` is called now and then.
  Work(const Reduction& reduction, int rank, Layers layers, bool plain,
       std::function<void()> progress);

  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  [[nodiscard]] int rank() const { return rank_; }

  /// What messages of a part take: contributions, running sums across units, results.
  [[nodiscard]] std::int64_t WireBytes(const Part& part) const;
  [[nodiscard]] std::int64_t StateBytes(const Part& part) const;
  [[nodiscard]] std::int64_t ResultBytes(const Part& part) const;

  /// This rank's contributions.
  void Pack(const Part& part, const Message& to) const;
  /// The whole reduction of a part: from[r] is what Pack made on rank r; this rank's own is null.
  /// Results go to `to`.
  void Fold(const Part& part, std::span<const SharedMessage> from, const Message& to) const;
  /// The sum of this rank's group: from[m] of its member m, this rank's own null.
  void FoldGroup(const Part& part, std::span<const SharedMessage> from, const Message& to) const;
  /// Takes this rank's own contribution as term k of the sum across units, whose running state is
  /// in `from` (null for k = 0); the new state, or after the last term the result, goes to `to`.
  void Hop(const Part& part, std::int64_t k, const Message* from, const Message& to) const;
  /// The same; the terms are `values`, by position.
  void HopValues(const Part& part, std::int64_t k, const Message* from, const float* values,
                 const Message& to) const;
  /// Results to and from values by position, as they are.
  void LoadResults(const Part& part, const Message& from, float* values) const;
  void StoreResults(const Part& part, const float* values, const Message& to) const;
  /// Results into the layers: scale undone, divided.
  void Unpack(const Part& part, const Message& from) const;
  /// Another rank's contributions, as they are, to out + offset[layer].
  void UnpackWire(const Part& part, const Message& from,
                  std::span<const std::int64_t> offset) const;

 private:
  struct Block;
  class Codes;

  void Each(const Part& part, const std::function<void(const Block&)>& body) const;
  [[nodiscard]] Format Travelling(const Format& format) const;
  [[nodiscard]] Codes WireCodes(const Part& part, const Message* message) const;
  [[nodiscard]] Codes ResultCodes(const Part& part, const Message& message) const;
  [[nodiscard]] std::vector<Codes> StateCodes(const Part& part, const Message* message) const;
  [[nodiscard]] std::vector<Codes> AllWireCodes(const Part& part,
                                                std::span<const SharedMessage> from) const;
  void OwnTerms(const Block& block, float* terms) const;
  void Contribution(const Block& block, const Codes& codes, float* terms) const;
  void GroupSums(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                 std::span<const Codes> members, float* sums) const;
  void UnitTerms(const Block& block, std::int64_t unit, std::int64_t offset, std::int64_t n,
                 std::span<const Codes> from, float* terms) const;
  void FoldUnits(const Block& block, std::int64_t slice, std::int64_t offset, std::int64_t n,
                 std::span<const Codes> from, float* sums) const;
  void HopBlocks(const Part& part, std::int64_t k, const Message* from, const Message& to,
                 const std::function<void(const Block&, float* terms)>& term) const;

  const Reduction& reduction_;
  int rank_;
  Layers layers_;
  bool plain_;
  std::function<void()> progress_;
};

}  // namespace cpd
