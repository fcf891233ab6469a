// SPDX-License-Identifier: Apache-2.0
//
// Moves bytes between ranks. A transport never reads or adds values: arithmetic is
// reduction.h's. Everything is nonblocking and polled, so that the caller keeps the deadlines
// (link.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/comm/errors.h"

namespace cpd {

/// A message to a peer. The memory stays as it is until the transfer is done.
struct Outgoing {
  int peer = 0;
  const void* data = nullptr;
  std::int64_t bytes = 0;
};

/// Memory for a message of exactly so many bytes from a peer.
struct Incoming {
  int peer = 0;
  void* data = nullptr;
  std::int64_t bytes = 0;
};

/// Messages under way. Destroying it before Poll has returned true abandons them: their memory must
/// then stay for as long as the process lives.
class CPD_API Transfer {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  virtual ~Transfer();
  /// Advances the messages without waiting; true when every incoming one has arrived and the memory
  /// of every outgoing one is free. Throws TransportError where the transport reports a failure.
  virtual bool Poll() = 0;
  /// The peers whose message has not arrived, or that have not taken ours; ascending.
  [[nodiscard]] virtual std::vector<int> Waiting() const = 0;
};

/// Seconds until a silent rank is lost, by default.
constexpr double kDefaultTimeout = 300;
/// Seconds for which a rank that gives up listens which others are alive, for this timeout.
constexpr double Grace(double timeout) { return timeout < 4 ? timeout / 4 : 1; }

/// Tags are 0 … kTags - 1.
constexpr int kTags = 1 << 15;

class CPD_API Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport();

  /// `local`, `mpi`, `nccl`, `gloo`, …
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// The number of ranks that run on this host: they share its cores.
  [[nodiscard]] virtual int ranks_on_host() const = 0;
  /// The memory of messages: Device::cuda for a transport between GPUs.
  [[nodiscard]] virtual Device memory() const { return Device::cpu; }
  /// The device's index, where messages are in a device's memory.
  [[nodiscard]] virtual int device_index() const { return 0; }

  /// Starts messages; at most one to and one from each peer, none to itself. Messages between two
  /// ranks are matched by `tag`, equal tags in the order in which they were started. Every rank
  /// starts its transfers in the same order. An empty message need not travel, but both sides name
  /// it or neither does.
  virtual std::unique_ptr<Transfer> Start(std::span<const Outgoing> out,
                                          std::span<const Incoming> in, int tag) = 0;

  /// Reports to every rank that can be reached that this one is alive and has given up.
  virtual void RaiseAlarm() noexcept = 0;
  /// Returns the ranks that have raised their alarm, this one included; does not wait. Empty if the
  /// transport cannot know.
  [[nodiscard]] virtual std::vector<bool> Alarms() = 0;
  /// Returns the rank whose process keeps the alarms: if Alarms() stays empty, that rank is lost.
  /// -1: none of these ranks, or unknown.
  [[nodiscard]] virtual int alarm_keeper() const { return -1; }

  /// A transport among some of the ranks (ascending, this one among them), called by these alone;
  /// works after an alarm. `timeout` in seconds. Throws Error, TransportError, and RankLost with
  /// the numbers, in this transport, of those who did not come in time.
  virtual std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) = 0;

  /// Ends every rank of the job, where the transport can (MPI_Abort); else this process.
  [[noreturn]] virtual void Abort(const std::string& reason) noexcept = 0;
};

/// For implementations of a transport. Throws Error where a peer is not another rank, or `tag` is
/// not a tag.
CPD_API void CheckStart(const Transport& transport, std::span<const Outgoing> out,
                        std::span<const Incoming> in, int tag);
/// Throws Error unless the ranks are ascending, in 0 … size() - 1, and this one is among them.
/// Returns this one's index in `ranks`.
CPD_API int CheckSubgroup(const Transport& transport, std::span<const int> ranks);

}  // namespace cpd
