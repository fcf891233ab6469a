// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/link.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "cpd/base/backoff.h"
#include "cpd/base/interrupt.h"
#include "cpd/comm/transport/fault.h"
#include "cpd/ops/reduce.h"

namespace cpd {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double kLookAround = 0.005;  // seconds of waiting between two looks at the alarms

std::string Tenths(double seconds) {
  const std::int64_t tenths = std::llround(seconds * 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

struct Header {
  std::uint64_t length = 0;
  std::uint32_t flags = 0;  // phase << 28 | number mod 2^28
  std::uint32_t crc = 0;    // of the payload, then of length and flags
};
static_assert(sizeof(Header) == kHeaderBytes);

/// Returns the header of each message. All messages are in the same memory as the first.
std::vector<Header> MakeHeaders(std::span<const Message* const> messages, Phase phase,
                                std::uint32_t number) {
  std::vector<Header> headers(messages.size());
  if (messages.empty()) return headers;
  std::vector<ByteRange> payloads;
  for (const Message* message : messages)
    payloads.push_back({message->payload(), message->bytes()});
  const std::vector<std::uint32_t> crcs = messages[0]->memory().Checksums(payloads);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    headers[i].length = static_cast<std::uint64_t>(messages[i]->bytes());
    headers[i].flags = static_cast<std::uint32_t>(phase) << 28 | (number & 0xFFFFFFFU);
    headers[i].crc = Crc32c(crcs[i], 12, &headers[i]);
  }
  return headers;
}

/// Writes the headers of messages. The queue must have finished all work on the messages. If
/// successive entries of `out` share one message, its header is written once.
void Seal(std::span<const Addressed> out, Phase phase, std::uint32_t number) {
  std::vector<const Message*> messages;
  for (const auto& [peer, message] : out) {
    if (messages.empty() || messages.back() != message.get()) messages.push_back(message.get());
  }
  if (messages.empty()) return;
  const std::vector<Header> headers = MakeHeaders(messages, phase, number);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    messages[i]->memory().Write(messages[i]->header(), &headers[i], kHeaderBytes);
  }
}

}  // namespace

struct Abandoned {
  std::vector<Addressed> out, in;
  Abandoned* next = nullptr;
};

void AbandonedDelete::operator()(Abandoned* messages) const noexcept { delete messages; }

namespace {

/// A list of all abandoned messages, which is kept until the process ends.
std::atomic<Abandoned*> g_abandoned{nullptr};

}  // namespace

Message::Message(SharedMemory memory, std::int64_t capacity)
    : memory_(std::move(memory)),
      capacity_((capacity + MessageMemory::kAlign) / MessageMemory::kAlign *
                MessageMemory::kAlign) {
  begin_ = memory_->Allocate(capacity_ + MessageMemory::kAlign);
}
Message::Message(Message&& other) noexcept
    : memory_(std::move(other.memory_)),
      begin_(std::exchange(other.begin_, nullptr)),
      bytes_(other.bytes_),
      capacity_(other.capacity_),
      source_(other.source_) {}
Message& Message::operator=(Message&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(begin_, other.begin_);
  std::swap(bytes_, other.bytes_);
  std::swap(capacity_, other.capacity_);
  std::swap(source_, other.source_);
  return *this;
}
Message::~Message() {
  if (begin_ != nullptr) memory_->Free(begin_);
}

SharedMessage MessagePool::Take(std::int64_t bytes) {
  std::vector<Message>& free = *free_;
  auto found = std::ranges::find_if(free, [&](const Message& m) { return m.capacity() >= bytes; });
  Message message;
  if (found != free.end()) {
    message = std::move(*found);
    free.erase(found);
  } else {
    message = Message(memory_, bytes);
  }
  message.Resize(bytes);
  message.SetSource(-1);
  const auto back = [pool = free_](Message* used) {
    pool->push_back(std::move(*used));
    delete used;
  };
  return {new Message(std::move(message)), back};
}

Link::Link(Transport& transport, double timeout)
    : transport_(transport),
      timeout_(timeout),
      queue_(transport.memory() == Device::cpu
                 ? HostQueue()
                 : std::make_shared<const Queue>(transport.memory(), transport.device_index())),
      control_(std::make_shared<const MessageMemory>(
          queue_, transport.memory() == Device::cpu ? MemoryKind::pinned : MemoryKind::device)),
      values_(control_) {}

SharedQueue Link::UseLayersOn(Device device, int index) {
  const bool on_host = device == Device::cpu;
  if (!on_host && !queue_->is_on(device, index)) {
    queue_ = std::make_shared<const Queue>(device, index);
    layers_ = Device::cpu;
  }
  const SharedQueue& queue = on_host ? HostQueue() : queue_;
  if (device != layers_ && transport_.memory() == Device::cpu) {
    values_ = MessagePool(std::make_shared<const MessageMemory>(queue, MemoryKind::pinned));
  }
  layers_ = device;
  return queue;
}

Pending::Pending() = default;

Pending::~Pending() {
  if (transfer == nullptr) return;
  transfer.reset();
  Leave();
}

void Pending::Leave() noexcept {
  Abandoned* left = abandoned_.release();
  left->out = std::move(out);
  left->in = std::move(in);
  left->next = g_abandoned;
  while (!g_abandoned.compare_exchange_weak(left->next, left)) {
  }
}

Channel::~Channel() = default;

void Link::Enter(Phase phase, std::int64_t chunk) { cpd::Enter(phase, chunk, transport_); }

Pending Link::Start(Phase phase, std::vector<Addressed> out, std::vector<Addressed> in) {
  return Begin(phase, std::move(out), std::move(in), true);
}

Pending Link::Begin(Phase phase, std::vector<Addressed> out, std::vector<Addressed> in,
                    bool counts_as_values) {
  const auto is_empty = [](const Addressed& one) { return one.message->bytes() == 0; };
  std::erase_if(out, is_empty);
  std::erase_if(in, is_empty);
  Pending pending;
  pending.phase = phase;
  pending.number = number_++;
  // Wait also for queued work on the incoming messages: kernels may still read their memory.
  if (!in.empty()) in[0].message->memory().Settle();
  if (in.empty() && !out.empty()) out[0].message->memory().Settle();
  Seal(out, phase, pending.number);
  std::vector<Outgoing> outgoing;
  for (const auto& [peer, message] : out) {
    outgoing.push_back({peer, message->header(), message->bytes() + kHeaderBytes});
    traffic_.header_bytes += kHeaderBytes + (counts_as_values ? 0 : message->bytes());
    if (counts_as_values) traffic_.bytes_sent += message->bytes();
    ++traffic_.messages;
  }
  std::vector<Incoming> incoming;
  for (const auto& [peer, message] : in) {
    message->SetSource(peer);
    incoming.push_back({peer, message->header(), message->bytes() + kHeaderBytes});
    if (counts_as_values) traffic_.bytes_received += message->bytes();
  }
  if (outgoing.empty() && incoming.empty()) return pending;
  pending.abandoned_.reset(new Abandoned);
  pending.out = std::move(out);
  pending.in = std::move(in);
  // If Start throws, some of the messages may be under way, so their memory must stay valid.
  try {
    pending.transfer =
        transport_.Start(outgoing, incoming, static_cast<int>(pending.number % kTags));
  } catch (const TransportError& error) {
    pending.Leave();
    Fail(phase, error.what(), error.peer < 0 ? std::vector<int>{} : std::vector{error.peer});
  } catch (...) {
    pending.Leave();
    throw;
  }
  return pending;
}

Pending Link::StartSizes(Phase phase, std::span<const Addressed> out,
                         std::span<const Addressed> in) {
  constexpr std::int64_t bytes = sizeof(std::int64_t);
  std::vector<Addressed> sizes;
  std::vector<Addressed> others;
  for (const auto& [peer, message] : out) {
    if (message->bytes() == 0) continue;
    const std::int64_t size = message->bytes();
    sizes.push_back({peer, control_.Take(bytes)});
    const Message& ahead = *sizes.back().message;
    ahead.memory().Write(ahead.payload(), &size, bytes);
  }
  for (const auto& [peer, message] : in) {
    if (message->bytes() > 0) others.push_back({peer, control_.Take(bytes)});
  }
  return Begin(phase, std::move(sizes), std::move(others), false);
}

void Link::TakeSizes(const Pending& sizes, std::span<const Addressed> in) {
  auto ahead = sizes.in.begin();
  for (const auto& [peer, message] : in) {
    if (message->bytes() == 0) continue;
    std::int64_t size = 0;
    ahead->message->memory().Read(&size, ahead->message->payload(), sizeof(size));
    ++ahead;
    if (size < 1 || size > message->bytes()) {
      throw Corrupt("rank " + std::to_string(peer) + " announces a message of " +
                    std::to_string(size) + " bytes in phase " + ToString(sizes.phase) +
                    ", of which at most " + std::to_string(message->bytes()) + " can be");
    }
    message->Resize(size);
  }
}

bool Link::Poll(Pending& pending) {
  try {
    return pending.transfer->Poll();
  } catch (const TransportError& error) {
    Fail(pending.phase, error.what(),
         error.peer < 0 ? pending.transfer->Waiting() : std::vector{error.peer});
  }
}

void Link::Wait(Pending& pending) {
  if (pending.transfer == nullptr) return;
  const double longest = timeout_ - Grace(timeout_);
  const auto begin = Clock::now();
  double next_look = 2 * kLookAround;
  Backoff backoff;
  while (!Poll(pending)) {
    CheckInterrupt();
    backoff.Wait();
    const double waited = Seconds(Clock::now() - begin).count();
    if (waited < next_look) continue;
    next_look = waited + kLookAround;
    if (const std::string heard = HeardAlarm(); !heard.empty()) {
      Fail(pending.phase, heard, pending.transfer->Waiting());
    }
    if (waited > longest) {
      Fail(pending.phase, "no answer for " + Tenths(timeout_), pending.transfer->Waiting());
    }
  }
  pending.transfer.reset();
  Verify(pending);
}

void Link::Progress(Pending& pending) {
  if (pending.transfer != nullptr) static_cast<void>(Poll(pending));
}

void Link::Verify(const Pending& pending) {
  std::vector<const Message*> messages;
  messages.reserve(pending.in.size());
  for (const auto& [peer, message] : pending.in) messages.push_back(message.get());
  const std::vector<Header> all = MakeHeaders(messages, pending.phase, pending.number);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Header& expected = all[i];
    Header header;
    messages[i]->memory().Read(&header, messages[i]->header(), kHeaderBytes);
    if (std::memcmp(&header, &expected, sizeof(header)) == 0) continue;
    GiveUp();
    const char* what = header.length != expected.length ? "length"
                       : header.flags != expected.flags ? "phase or number"
                                                        : "checksum";
    throw Corrupt("a message from rank " + std::to_string(pending.in[i].peer) + " in phase " +
                  ToString(pending.phase) + " is damaged: its " + what + " is wrong");
  }
}

std::string Link::HeardAlarm() {
  const std::vector<bool> alarms = transport_.Alarms();
  has_heard_ = has_heard_ || !alarms.empty();
  std::vector<int> raised;
  for (int rank = 0; rank < static_cast<int>(alarms.size()); ++rank) {
    if (rank != transport_.rank() && alarms[static_cast<std::size_t>(rank)]) raised.push_back(rank);
  }
  return raised.empty() ? "" : NameRanks(raised) + " gave up";
}

void Link::CheckAlarms(Phase phase) {
  if (const std::string heard = HeardAlarm(); !heard.empty()) Fail(phase, heard + " before", {});
}

std::vector<int> Link::Lost(const std::vector<bool>& alive,
                            const std::vector<int>& suspects) const {
  if (alive.empty()) {
    const int keeper = transport_.alarm_keeper();
    if (keeper >= 0 && keeper != transport_.rank()) return {keeper};
    return transport_.size() == 2 ? suspects : std::vector<int>();
  }
  std::vector<int> lost = suspects;
  std::erase_if(lost, [&](int rank) { return alive[static_cast<std::size_t>(rank)]; });
  for (int rank = 0; lost.empty() && rank < transport_.size(); ++rank) {
    if (!alive[static_cast<std::size_t>(rank)]) lost.push_back(rank);
  }
  return lost;
}

void Link::Fail(Phase phase, const std::string& why, const std::vector<int>& suspects) {
  transport_.RaiseAlarm();
  const auto begin = Clock::now();
  std::vector<bool> alive = transport_.Alarms();
  const auto is_known = [&] {
    // If `alive` is empty, the transport does not know yet which ranks raised alarms. It can still
    // learn this only if one process stores the alarms of all ranks, or if Alarms() has had an
    // answer before.
    if (alive.empty()) return transport_.alarm_keeper() < 0 && !has_heard_;
    return std::ranges::find(alive, false) == alive.end();
  };
  while (!is_known() && Seconds(Clock::now() - begin).count() < Grace(timeout_)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    alive = transport_.Alarms();
  }
  const std::vector<int> lost = Lost(alive, suspects);
  std::string unheard;
  if (alive.empty() && lost.size() == 1 && lost[0] == transport_.alarm_keeper()) {
    unheard = "; its process kept the ranks' alarms";
  } else if (alive.empty()) {
    unheard = "; which other ranks are left cannot be known";
  }
  const auto where = [&](const std::string& reason) {
    return " in phase " + ToString(phase) + " (" + reason + unheard + ")";
  };
  if (lost.empty()) {
    // The alarm of a rank that gave up may arrive only after its connections are closed: look once
    // more.
    const std::string heard = HeardAlarm();
    const bool is_in_why = why.find(heard) != std::string::npos;
    throw RankLost("the reduction was given up" + where(is_in_why ? why : heard + "; " + why), {});
  }
  throw RankLost(
      NameRanks(lost) + " of " + std::to_string(transport_.size()) + " lost" + where(why), lost);
}

std::vector<std::uint8_t> Link::AllGather(Phase phase, std::span<const std::uint8_t> own) {
  const std::vector<std::int64_t> bytes(static_cast<std::size_t>(transport_.size()),
                                        static_cast<std::int64_t>(own.size()));
  return AllGather(phase, own, bytes);
}

std::vector<std::uint8_t> Link::AllGather(Phase phase, std::span<const std::uint8_t> own,
                                          std::span<const std::int64_t> bytes) {
  const int size = transport_.size();
  const auto bytes_of = [&](int rank) { return bytes[static_cast<std::size_t>(rank)]; };
  const SharedMessage mine = control_.Take(bytes_of(transport_.rank()));
  if (!own.empty()) mine->memory().Write(mine->payload(), own.data(), mine->bytes());
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  for (int step = 1; step < size; ++step) {
    const int source = (transport_.rank() + size - step) % size;
    out.push_back({(transport_.rank() + step) % size, mine});
    in.push_back({source, control_.Take(bytes_of(source))});
  }
  Pending pending = Begin(phase, std::move(out), std::move(in), false);
  Wait(pending);
  std::vector<std::int64_t> begins(bytes.size() + 1, 0);
  std::inclusive_scan(bytes.begin(), bytes.end(), begins.begin() + 1);
  std::vector<std::uint8_t> all(static_cast<std::size_t>(begins.back()));
  const auto place = [&](int rank) { return all.data() + begins[static_cast<std::size_t>(rank)]; };
  std::ranges::copy(own, place(transport_.rank()));
  for (const auto& [peer, message] : pending.in) {
    message->memory().Read(place(peer), message->payload(), message->bytes());
  }
  return all;
}

template <class T>
void Link::MaxOf(Phase phase, std::span<T> numbers) {
  const int size = transport_.size();
  const auto bytes = static_cast<std::int64_t>(numbers.size_bytes());
  std::vector<T> other(numbers.size());
  for (int distance = 1; distance < size; distance *= 2) {
    const SharedMessage mine = control_.Take(bytes);
    const SharedMessage theirs = control_.Take(bytes);
    mine->memory().Write(mine->payload(), numbers.data(), bytes);
    Pending pending = Begin(phase, {{(transport_.rank() + distance) % size, mine}},
                            {{(transport_.rank() + size - distance) % size, theirs}}, false);
    Wait(pending);
    theirs->memory().Read(other.data(), theirs->payload(), bytes);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::max(numbers[i], other[i]);
  }
}

void Link::Max(Phase phase, std::span<std::uint32_t> numbers) { MaxOf(phase, numbers); }
void Link::Max(Phase phase, std::span<float> numbers) { MaxOf(phase, numbers); }

}  // namespace cpd
