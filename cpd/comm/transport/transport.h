// SPDX-License-Identifier: Apache-2.0
//
// Transports, which move bytes between ranks. A transport never reads or adds values; reduction.h
// has the arithmetic. All calls are nonblocking and transfers are polled, so the caller (link.h)
// can enforce deadlines.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/comm/errors.h"

namespace cpd {

/// A message to a peer. Its memory must stay unchanged until the transfer is done.
struct Outgoing {
  int peer = 0;
  const void* data = nullptr;
  std::int64_t bytes = 0;
};

/// Memory for a message of exactly `bytes` bytes from a peer.
struct Incoming {
  int peer = 0;
  void* data = nullptr;
  std::int64_t bytes = 0;
};

/// The messages of one transfer, under way. If this object is destroyed before Poll has returned
/// true, the messages are abandoned. Their memory must then stay valid until the process ends.
class CPD_API Transfer {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  virtual ~Transfer();
  /// Advances the messages without waiting. Returns true when every incoming message has arrived
  /// and the memory of every outgoing message is free. Throws TransportError if the transport
  /// reports a failure.
  virtual bool Poll() = 0;
  /// Returns, ascending, the peers from which a message has not arrived or that have not taken a
  /// message of this rank.
  [[nodiscard]] virtual std::vector<int> Waiting() const = 0;
};

/// The default number of seconds after which a silent rank is lost.
constexpr double kDefaultTimeout = 300;
/// Returns the seconds for which a rank that gives up listens to learn which other ranks are alive.
/// `timeout`: in seconds.
constexpr double Grace(double timeout) { return timeout < 4 ? timeout / 4 : 1; }

/// The number of tags. A message's tag is 0 … kTags - 1.
constexpr int kTags = 1 << 15;

class CPD_API Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport();

  /// Returns the transport's name: `local`, `mpi`, `nccl`, `gloo`, …
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Returns the number of the group's ranks on this host, which share the host's cores.
  [[nodiscard]] virtual int ranks_on_host() const = 0;
  /// Returns the kind of memory that messages must be in: Device::cuda for a transport between
  /// GPUs.
  [[nodiscard]] virtual Device memory() const { return Device::cpu; }
  /// Returns the index of the device whose memory holds messages; 0 for host memory.
  [[nodiscard]] virtual int device_index() const { return 0; }

  /// Starts a transfer: at most one message to each peer and one from each peer, none to this rank.
  /// Messages between two ranks are matched by `tag`; messages with equal tags are matched in the
  /// order in which they were started. Every rank starts its transfers in the same order. An empty
  /// message need not be sent, but either both sides list it or neither side does.
  virtual std::unique_ptr<Transfer> Start(std::span<const Outgoing> out,
                                          std::span<const Incoming> in, int tag) = 0;

  /// Tells every rank that can be reached that this rank is alive and has given up.
  virtual void RaiseAlarm() noexcept = 0;
  /// Returns, for each rank, whether it has raised its alarm, this rank included. Does not wait.
  /// Empty if the transport cannot know.
  [[nodiscard]] virtual std::vector<bool> Alarms() = 0;
  /// Returns the rank whose process stores the alarms of all ranks for Alarms() to read. If
  /// Alarms() stays empty, that rank is lost. -1 if none of the transport's ranks stores them, or
  /// if this is unknown.
  [[nodiscard]] virtual int alarm_keeper() const { return -1; }

  /// Returns a transport among some of this transport's ranks, `ranks`, which are ascending and
  /// include this rank. Only these ranks call Subgroup. The call also works after an alarm.
  /// `timeout`: in seconds. Throws Error, TransportError, or RankLost with the ranks that did not
  /// call in time, by their numbers in this transport.
  virtual std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) = 0;

  /// Ends every rank of the job if the transport can (MPI_Abort), and this process otherwise.
  [[noreturn]] virtual void Abort(const std::string& reason) noexcept = 0;
};

/// For implementations of a transport: throws Error if a peer is not another rank of the group, or
/// `tag` is out of range.
CPD_API void CheckStart(const Transport& transport, std::span<const Outgoing> out,
                        std::span<const Incoming> in, int tag);
/// Returns this rank's index in `ranks`. Throws Error unless the ranks are ascending, in 0 … size()
/// - 1, and include this rank.
CPD_API int CheckSubgroup(const Transport& transport, std::span<const int> ranks);

}  // namespace cpd
