// SPDX-License-Identifier: Apache-2.0
//
// A transport with checks. Every message has a 16-byte header (length, phase and number, CRC-32C),
// which the receiver verifies. Every wait has a deadline, after which it throws a named error.
// Messages and bytes are counted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/comm/engine/memory.h"
#include "cpd/comm/errors.h"
#include "cpd/comm/report.h"
#include "cpd/comm/transport/transport.h"

namespace cpd {

constexpr std::int64_t kHeaderBytes = 16;

/// Memory for one message, with the message's header in front of the payload.
class CPD_API Message {
 public:
  Message() = default;
  Message(SharedMemory memory, std::int64_t capacity);
  Message(Message&& other) noexcept;
  Message& operator=(Message&& other) noexcept;
  ~Message();

  [[nodiscard]] const MessageMemory& memory() const { return *memory_; }
  [[nodiscard]] std::uint8_t* payload() const { return begin_ + MessageMemory::kAlign; }
  [[nodiscard]] std::uint8_t* header() const { return payload() - kHeaderBytes; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  void Resize(std::int64_t bytes) { bytes_ = bytes; }
  /// The rank that sends the message; -1 for a message of this rank.
  [[nodiscard]] int source() const { return source_; }
  void SetSource(int rank) { source_ = rank; }

 private:
  SharedMemory memory_;
  std::uint8_t* begin_ = nullptr;  // the payload begins kAlign bytes behind it
  std::int64_t bytes_ = 0, capacity_ = 0;
  int source_ = -1;
};

/// Messages whose memory later chunks use again.
class CPD_API MessagePool {
 public:
  explicit MessagePool(SharedMemory memory) : memory_(std::move(memory)) {}
  [[nodiscard]] std::shared_ptr<Message> Take(std::int64_t bytes);

 private:
  SharedMemory memory_;
  std::shared_ptr<std::vector<Message>> free_ = std::make_shared<std::vector<Message>>();
};

using SharedMessage = std::shared_ptr<Message>;

struct Addressed {
  int peer = 0;
  SharedMessage message;
};

/// Messages of a transfer that was abandoned. The transport may still read and write them. This
/// object is allocated before the transfer starts, so abandoning the transfer allocates nothing.
struct Abandoned;
struct AbandonedDelete {
  void operator()(Abandoned* messages) const noexcept;
};

/// The messages of one transfer that is under way. If this object is destroyed before the transfer
/// is complete, the messages' memory stays reserved until the process ends, because the transport
/// may still use it.
class CPD_API Pending {
 public:
  Pending();
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&&) = delete;
  ~Pending();

  Phase phase = Phase::exchange;
  std::uint32_t number = 0;
  std::unique_ptr<Transfer> transfer;  ///< null: done
  std::vector<Addressed> out, in;

 private:
  friend class Link;
  void Leave() noexcept;  // abandons the messages to the transport
  std::unique_ptr<Abandoned, AbandonedDelete> abandoned_;
};

/// The channel on which an exchange sends messages: a Link, or a channel that only counts messages
/// (study/dry_run.h).
class CPD_API Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel();

  /// Reports that a chunk enters a phase.
  virtual void Enter(Phase phase, std::int64_t chunk) = 0;
  /// Returns memory for a message of `bytes` bytes of values.
  [[nodiscard]] virtual SharedMessage Take(std::int64_t bytes) = 0;
  /// Starts a transfer of sizes, for messages whose receivers do not know their sizes. Sends the
  /// size of each message of `out` to the message's receiver, and receives the sizes of the
  /// messages of `in`. Before the call, the messages of `in` have their maximum sizes. Empty
  /// messages are left out.
  virtual Pending StartSizes(Phase phase, std::span<const Addressed> out,
                             std::span<const Addressed> in) = 0;
  /// Sets the sizes of the messages of `in` to the received sizes, after the transfer `sizes` is
  /// complete. Throws Corrupt for a size that is 0 or above the maximum.
  virtual void TakeSizes(const Pending& sizes, std::span<const Addressed> in) = 0;
  /// Starts a transfer of values. Transfers are numbered in the order of their start, equally on
  /// all ranks, and the number serves as the tag. Empty messages are not sent.
  virtual Pending Start(Phase phase, std::vector<Addressed> out, std::vector<Addressed> in) = 0;
};

class CPD_API Link final : public Channel {
 public:
  Link(Transport& transport, double timeout);

  [[nodiscard]] Transport& transport() const { return transport_; }
  [[nodiscard]] Traffic& traffic() { return traffic_; }
  void Enter(Phase phase, std::int64_t chunk) override;
  [[nodiscard]] SharedMessage Take(std::int64_t bytes) override { return values_.Take(bytes); }
  Pending StartSizes(Phase phase, std::span<const Addressed> out,
                     std::span<const Addressed> in) override;
  void TakeSizes(const Pending& sizes, std::span<const Addressed> in) override;
  Pending Start(Phase phase, std::vector<Addressed> out, std::vector<Addressed> in) override;

  /// Tells the link that the layers of the next call are on the device `device`, number `index`.
  /// Returns the queue of that device.
  SharedQueue UseLayersOn(Device device, int index);

  /// Waits until all messages of the transfer have arrived, and verifies their headers. Throws
  /// RankLost or Corrupt.
  void Wait(Pending& pending);
  /// Advances a transfer without waiting. Call it between steps of a computation.
  void Progress(Pending& pending);
  /// Throws RankLost if another rank has given up.
  void CheckAlarms(Phase phase);
  /// Raises the alarm: tells other ranks that this rank gives up.
  void GiveUp() noexcept { transport_.RaiseAlarm(); }

  /// Sends the bytes `own` to all ranks. Returns the bytes of all ranks, this rank included, by
  /// ascending rank. All ranks must pass equally many bytes.
  std::vector<std::uint8_t> AllGather(Phase phase, std::span<const std::uint8_t> own);
  /// Sends the bytes `own` to all ranks. Returns the bytes of all ranks, this rank included, by
  /// ascending rank. Rank r passes bytes[r] bytes.
  std::vector<std::uint8_t> AllGather(Phase phase, std::span<const std::uint8_t> own,
                                      std::span<const std::int64_t> bytes);
  /// Replaces each number by the largest of all ranks' numbers at its index. Numbers are not
  /// negative. Takes ceil(log2 size) steps.
  void Max(Phase phase, std::span<std::uint32_t> numbers);
  void Max(Phase phase, std::span<float> numbers);

 private:
  /// `counts_as_values`: whether the bytes of the messages are counted as encoded values (Traffic)
  /// or as headers.
  Pending Begin(Phase phase, std::vector<Addressed> out, std::vector<Addressed> in,
                bool counts_as_values);
  template <class T>
  void MaxOf(Phase phase, std::span<T> numbers);
  void Verify(const Pending& pending);
  [[nodiscard]] bool Poll(Pending& pending);
  /// Returns a text that names the other ranks that have given up; empty if there are none.
  [[nodiscard]] std::string HeardAlarm();
  /// Returns the ranks to name as lost: the ranks in `suspects` (for which this rank waited) that
  /// are not alive or, if all suspects are alive, all ranks that are not alive. If `alive` is
  /// empty, it is unknown which ranks are alive. Then returns the rank whose process stores the
  /// alarms, if that is known and is another rank. Otherwise returns the suspects in a group of two
  /// ranks, and no rank in a larger group.
  [[nodiscard]] std::vector<int> Lost(const std::vector<bool>& alive,
                                      const std::vector<int>& suspects) const;
  /// Raises the alarm, listens for a while to learn which ranks are alive, and throws RankLost.
  /// `suspects`: the ranks that this rank waits for.
  [[noreturn]] void Fail(Phase phase, const std::string& why, const std::vector<int>& suspects);

  Transport& transport_;
  double timeout_;
  bool has_heard_ = false;  ///< whether the transport has ever answered which alarms there are
  SharedQueue queue_;       // of the device in use, other than the CPU
  MessagePool control_;     // messages that the host writes and reads
  MessagePool values_;
  Device layers_ = Device::cpu;
  std::uint32_t number_ = 0;
  Traffic traffic_;
};

}  // namespace cpd
