// SPDX-License-Identifier: Apache-2.0
//
// A transport with checks. Every message has a 16-byte header (length, phase and number, CRC-32C),
// which is verified. Every wait has a deadline and ends in a named error. Everything is counted.
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

/// Memory for one message, its header in front of it.
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
  /// The rank that sends it; -1: none.
  [[nodiscard]] int source() const { return source_; }
  void SetSource(int rank) { source_ = rank; }

 private:
  SharedMemory memory_;
  std::uint8_t* begin_ = nullptr;  // the payload begins kAlign bytes behind it
  std::int64_t bytes_ = 0, capacity_ = 0;
  int source_ = -1;
};

/// Messages that later chunks use again.
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

/// Messages that a transport may still read and write though their transfer was given up. Allocated
/// before the transfer starts, so that abandoning it allocates nothing.
struct Abandoned;
struct AbandonedDelete {
  void operator()(Abandoned* messages) const noexcept;
};

/// Messages of one transfer, under way. Destroyed before it has come to its end, it leaves its
/// memory to the transport until the process ends.
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

/// The channel of an exchange's messages: a Link, or a channel that only counts them
/// (study/dry_run.h).
class CPD_API Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel();

  /// Called as a chunk enters a phase.
  virtual void Enter(Phase phase, std::int64_t chunk) = 0;
  /// Memory for a message of values.
  [[nodiscard]] virtual SharedMessage Take(std::int64_t bytes) = 0;
  /// Starts a transfer of the sizes of messages whose receivers do not know them, from the same
  /// ranks to the same ranks. Messages of `in` have their most bytes. Messages of no bytes take no
  /// part.
  virtual Pending StartSizes(Phase phase, std::span<const Addressed> out,
                             std::span<const Addressed> in) = 0;
  /// After that transfer, gives the messages of `in` the sizes that came. Throws Corrupt for one
  /// that is empty or larger than the most.
  virtual void TakeSizes(const Pending& sizes, std::span<const Addressed> in) = 0;
  /// Starts a transfer of values, which has the next number on all ranks. A message of no bytes
  /// does not travel.
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

  /// Returns the queue of this device. From now on, layers' values are on it.
  SharedQueue UseLayersOn(Device device, int index);

  /// Returns when all messages of the transfer have arrived and are as they were sent. Throws
  /// RankLost, Corrupt.
  void Wait(Pending& pending);
  /// Polls a transfer, between steps of a computation.
  void Progress(Pending& pending);
  /// Throws RankLost where another rank has given up.
  void CheckAlarms(Phase phase);
  /// Raises the alarm: this rank gives up for a reason of its own.
  void GiveUp() noexcept { transport_.RaiseAlarm(); }

  /// Returns every rank's record, rank ascending, this one's included. All have equally many bytes.
  std::vector<std::uint8_t> AllGather(Phase phase, std::span<const std::uint8_t> own);
  /// Every rank's record, rank ascending, of which rank r's has bytes[r] bytes.
  std::vector<std::uint8_t> AllGather(Phase phase, std::span<const std::uint8_t> own,
                                      std::span<const std::int64_t> bytes);
  /// The largest of all ranks' numbers (not negative), place by place; ceil(log2 size) steps.
  void Max(Phase phase, std::span<std::uint32_t> numbers);
  void Max(Phase phase, std::span<float> numbers);

 private:
  /// `counts_as_values`: its bytes are packed values (Traffic), not headers.
  Pending Begin(Phase phase, std::vector<Addressed> out, std::vector<Addressed> in,
                bool counts_as_values);
  template <class T>
  void MaxOf(Phase phase, std::span<T> numbers);
  void Verify(const Pending& pending);
  [[nodiscard]] bool Poll(Pending& pending);
  /// Returns the other ranks that have given up, in words; empty if there are none.
  [[nodiscard]] std::string HeardAlarm();
  /// Returns the ranks to name as lost: the suspects that are not alive, else all ranks that are
  /// not alive. If nothing is known (`alive` is empty): the keeper of the alarms, or the only other
  /// rank, else none.
  [[nodiscard]] std::vector<int> Lost(const std::vector<bool>& alive,
                                      const std::vector<int>& suspects) const;
  /// Raises the alarm, listens which ranks are alive, and throws RankLost. `suspects`: the ranks
  /// that this one waits for.
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
