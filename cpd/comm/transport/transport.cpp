// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport/transport.h"

#include <algorithm>

#include "cpd/spec/error.h"

namespace cpd {
namespace {

void CheckPeer(const Transport& transport, int peer) {
  if (peer >= 0 && peer < transport.size() && peer != transport.rank()) return;
  throw Error("peer must be another rank, 0…" + std::to_string(transport.size() - 1) + ", got " +
              std::to_string(peer) + " on rank " + std::to_string(transport.rank()));
}

}  // namespace

Transfer::~Transfer() = default;
Transport::~Transport() = default;

void CheckStart(const Transport& transport, std::span<const Outgoing> out,
                std::span<const Incoming> in, int tag) {
  if (tag < 0 || tag >= kTags) {
    throw Error("tag must be 0…" + std::to_string(kTags - 1) + ", got " + std::to_string(tag));
  }
  for (const Outgoing& message : out) CheckPeer(transport, message.peer);
  for (const Incoming& message : in) CheckPeer(transport, message.peer);
}

int CheckSubgroup(const Transport& transport, std::span<const int> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] >= 0 && ranks[i] < transport.size() && (i == 0 || ranks[i - 1] < ranks[i])) {
      continue;
    }
    throw Error("a subgroup's ranks must be ascending in 0…" +
                std::to_string(transport.size() - 1) + ", got " + std::to_string(ranks[i]) +
                " at place " + std::to_string(i));
  }
  const auto self = std::ranges::find(ranks, transport.rank());
  if (self == ranks.end()) {
    throw Error("a subgroup must hold the rank that makes it: " + std::to_string(transport.rank()));
  }
  return static_cast<int>(self - ranks.begin());
}

}  // namespace cpd
