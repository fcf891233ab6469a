// SPDX-License-Identifier: Apache-2.0
//
// Messages over MPI: the only file that includes mpi.h. All transports of a process share two
// duplicates of MPI_COMM_WORLD and differ by tags: the tag of a message is the transport's number
// (its context) and the caller's tag. A group of survivors is then made by messages among them
// alone: no collective call that a dead rank could hold up, and nothing sent to an older group can
// be taken for a message of the new one.
//
// Where MPI was started with MPI_THREAD_SERIALIZED, one thread at a time may use it.
#include <mpi.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/base/interrupt.h"
#include "cpd/comm/transport/libraries.h"
#include "cpd/comm/transport/mpi/attendance.h"
#include "cpd/comm/transport/mpi/quiet_thread.h"
#include "cpd/comm/transport/mpi/watchdog.h"
#include "cpd/numeric/error.h"

namespace cpd {
namespace {

/// MPI counts in int: longer messages go in pieces. Between hosts short ones do too: a piece below
/// 64 KiB, with MPI's own header, leaves at once over TCP, where a longer one waits for the
/// receiver's answer.
constexpr std::int64_t kLongPiece = std::int64_t{1} << 30;
constexpr std::int64_t kShortPiece = std::int64_t{60} << 10;
constexpr std::int64_t kMostShortPieces = 64;

/// Set when a rank was lost or messages were abandoned: MPI_Finalize may then wait for ever.
std::atomic<bool> g_lost{false};

using Clock = std::chrono::steady_clock;

Clock::time_point After(double seconds) {
  constexpr double most = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::clamp(seconds, 0.0, most)));
}

/// Between two looks at what a rank waits for.
void Pause() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

std::string Seconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  return text.data();
}

void Check(int code, const char* call, int peer = -1) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw TransportError(std::string(call) + ": " + text.data(), peer);
}

bool IsRunning() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

void EndAtExit() {
  if (IsRunning() && !g_lost) MPI_Finalize();
}

/// Open MPI writes to sockets whose other end may be dead; that must not end this process. Python
/// ignores the signal anyway.
void IgnoreBrokenPipes() {
  struct sigaction now{};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    now.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &now, nullptr);
  }
}

/// Whether a rank did not come to the start; it is the same error ever after.
std::optional<RankLost>& FailedStart() {
  static std::optional<RankLost> failure;
  return failure;
}

[[noreturn]] void FailStart(const std::string& why, const std::vector<int>& lost, int size) {
  g_lost = true;
  const std::string of = size > 0 ? " of " + std::to_string(size) : "";
  const std::string who =
      lost.empty() ? "the ranks did not all come" : NameRanks(lost) + of + " lost";
  const RankLost failure(who + " before the communicator was made (" + why + ")", lost);
  FailedStart() = failure;
  throw RankLost(failure);
}

/// Calls look(); where that throws, the others are told, and the start is over for this process.
template <class Look, class Tell>
void OrTell(Look look, Tell tell) {
  try {
    look();
  } catch (...) {
    g_lost = true;
    FailedStart().emplace("the start of MPI was interrupted in this process", std::vector<int>{});
    tell();
    throw;
  }
}

/// MPI_Init_thread in a thread of its own: it waits for all ranks of the job, for ever where one
/// has died, and the thread with it.
struct Start {
  std::atomic<bool> done{false};
  int code = MPI_SUCCESS;
  int level = MPI_THREAD_SINGLE;
};

int InitThread(double timeout) {
  static Attendance attendance;
  static Start start;
  StartQuietThread([] {
    start.code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &start.level);
    start.done = true;
  });
  const Clock::time_point deadline = After(timeout - Grace(timeout));
  const char* heard = nullptr;
  while (!start.done) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    OrTell(CheckInterrupt, [] { attendance.GiveUp(); });
    if (attendance.HasGivenUp()) heard = "another rank gave up";
    if (heard == nullptr && Clock::now() < deadline) continue;
    if (start.done) break;
    attendance.GiveUp();
    const std::vector<int> absent = attendance.Absent();
    FailStart(heard != nullptr ? heard : "MPI did not start for " + Seconds(timeout), absent,
              attendance.size());
  }
  Check(start.code, "MPI_Init_thread");
  if (std::atexit(EndAtExit) != 0) throw Error("no room to end MPI at exit (atexit)");
  return start.level;
}

void StartMpi(double timeout) {
  int started = 0;
  int ended = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (ended != 0) throw Error("MPI has been finalised in this process and cannot start again");
  if (started == 0) {
    level = InitThread(timeout);
  } else {
    Check(MPI_Query_thread(&level), "MPI_Query_thread");
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error("MPI must have been started with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
  }
  IgnoreBrokenPipes();
}

/// What the transports of this process share; it stays until the process ends.
struct Job {
  MPI_Comm data = MPI_COMM_NULL;     ///< tag: context * kTags + the caller's
  MPI_Comm control = MPI_COMM_NULL;  ///< tag: context for alarms, join_tag for joining a group
  int rank = 0, size = 0;            ///< in MPI_COMM_WORLD
  int contexts = 0;                  ///< how many the tags have room for
  int join_tag = 0;
  int next_context = 0;   ///< above all that this process has had
  std::vector<int> host;  ///< of each rank: the least rank on its host
};

/// In the order of MPI_COMM_WORLD.
std::vector<int> AllOf(const Job& job) {
  std::vector<int> world(static_cast<std::size_t>(job.size));
  std::iota(world.begin(), world.end(), 0);
  return world;
}

/// Receives on a communicator, one from each peer; those that have not arrived are cancelled at the
/// end, which asks nothing of the peers.
template <class Message>
class Mailbox {
 public:
  Mailbox(MPI_Comm comm, int own, std::vector<int> world, int tag)
      : comm_(comm),
        tag_(tag),
        world_(std::move(world)),
        requests_(world_.size(), MPI_REQUEST_NULL),
        indices_(world_.size()),
        messages_(world_.size()) {
    for (std::size_t i = 0; i < world_.size(); ++i) {
      if (world_[i] != own) Await(i);
    }
  }
  ~Mailbox() {
    if (!IsRunning()) return;
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
  }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Waits for a message from peer i, again.
  void Await(std::size_t i) {
    Check(
        MPI_Irecv(&messages_[i], sizeof(Message), MPI_BYTE, world_[i], tag_, comm_, &requests_[i]),
        "MPI_Irecv");
  }
  /// Calls arrived(i, message) for each that has come; a receive that failed counts as not come.
  template <class Function>
  void Poll(Function arrived) {
    const MpiCall call;
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  indices_.data(), MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS) return;
    for (int i = 0; i < count; ++i) {  // MPI_UNDEFINED, where nothing is awaited, is negative
      const auto peer = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
      arrived(peer, messages_[peer]);
    }
  }

 private:
  MPI_Comm comm_;
  int tag_;
  std::vector<int> world_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<Message> messages_;
};

/// The greatest tag that this MPI has.
int LastTag() {
  int* most = nullptr;
  int found = 0;
  Check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&most), &found),
        "MPI_Comm_get_attr");
  return found != 0 ? *most : kTags - 1;
}

/// How ranks that make the job's communicators tell that they have given up: on MPI_COMM_WORLD, for
/// there is no other yet, by a tag that nobody else has and only where a rank is lost. Until the
/// communicators are made, errors of MPI_COMM_WORLD are returned, not fatal.
class Farewells {
 public:
  explicit Farewells(const Job& job)
      : rank_(job.rank),
        size_(job.size),
        said_(static_cast<std::size_t>(job.size)),
        mailbox_(MPI_COMM_WORLD, job.rank, AllOf(job), LastTag()) {
    said_[static_cast<std::size_t>(rank_)] = true;  // of this rank nothing is to be heard
  }

  /// Whether another rank has given up.
  bool Heard() {
    mailbox_.Poll([&](std::size_t peer, std::uint8_t) {
      said_[peer] = true;
      heard_ = true;
    });
    return heard_;
  }

  /// Gives up, listens for a moment who else does, and names the others.
  [[noreturn]] void Fail(const std::string& why, double timeout) {
    Tell();
    const Clock::time_point deadline = After(Grace(timeout));
    do {
      Pause();
      Heard();
    } while (Clock::now() < deadline);  // MPI moves only while it is called
    std::vector<int> lost;
    for (int peer = 0; peer < size_; ++peer) {
      if (!said_[static_cast<std::size_t>(peer)]) lost.push_back(peer);
    }
    FailStart(why, lost, size_);
  }

  /// Gives up.
  void Tell() {
    static const std::uint8_t message = 1;  // stays while sends are under way
    for (int peer = 0; peer < size_; ++peer) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (peer != rank_ && MPI_Isend(&message, 1, MPI_BYTE, peer, LastTag(), MPI_COMM_WORLD,
                                     &request) == MPI_SUCCESS) {
        MPI_Request_free(&request);
      }
    }
  }

 private:
  int rank_, size_;
  std::vector<bool> said_;
  bool heard_ = false;
  Mailbox<std::uint8_t> mailbox_;
};

/// A duplicate of MPI_COMM_WORLD, which all ranks make; `copy` stays where it is for ever, as MPI
/// may write it when this rank has given up.
void Duplicate(MPI_Comm* copy, Farewells& farewells, double timeout, Clock::time_point deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  Check(MPI_Comm_idup(MPI_COMM_WORLD, copy, &request), "MPI_Comm_idup");
  int done = 0;
  while (true) {
    {
      const MpiCall call;
      Check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
    }
    if (done != 0) break;
    OrTell(CheckInterrupt, [&] { farewells.Tell(); });
    if (farewells.Heard()) farewells.Fail("another rank gave up", timeout);
    if (Clock::now() > deadline) farewells.Fail("no answer for " + Seconds(timeout), timeout);
    Pause();
  }
  Check(MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

/// All ranks of MPI_COMM_WORLD make it. Throws RankLost.
Job* MakeJob(double timeout) {
  static Job job;  // stays, also where it does not come about
  const Clock::time_point deadline = After(timeout - Grace(timeout));
  Check(MPI_Comm_rank(MPI_COMM_WORLD, &job.rank), "MPI_Comm_rank");
  Check(MPI_Comm_size(MPI_COMM_WORLD, &job.size), "MPI_Comm_size");
  MPI_Errhandler users = MPI_ERRHANDLER_NULL;
  Check(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &users), "MPI_Comm_get_errhandler");
  Check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  {
    Farewells farewells(job);
    Duplicate(&job.data, farewells, timeout, deadline);
    Duplicate(&job.control, farewells, timeout, deadline);
  }
  Check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, users), "MPI_Comm_set_errhandler");
  Check(MPI_Errhandler_free(&users), "MPI_Errhandler_free");
  job.join_tag = kTags - 1;
  const std::int64_t tags = std::int64_t{LastTag()} + 1;
  job.contexts = static_cast<int>(std::min<std::int64_t>(tags / kTags, job.join_tag));
  return &job;  // alarms have the tags below join_tag
}

Job& TheJob(double timeout) {
  static std::mutex mutex;
  static Job* job = nullptr;
  const std::lock_guard lock(mutex);
  if (const auto& failure = FailedStart()) throw RankLost(*failure);
  if (job == nullptr || !IsRunning()) StartMpi(timeout);
  if (job == nullptr) job = MakeJob(timeout);
  MpiCall::Watch(timeout);
  return *job;
}

int TakeContext(Job& job, int context) {
  if (context >= job.contexts) {
    throw Error("this MPI has tags for " + std::to_string(job.contexts) +
                " groups in a run, all of which have been made");
  }
  job.next_context = context + 1;
  return context;
}

/// The same on both sides, which know where the other runs and how long the message is.
std::int64_t PieceOf(const Job& job, int world, std::int64_t bytes) {
  const bool same_host =
      job.host[static_cast<std::size_t>(world)] == job.host[static_cast<std::size_t>(job.rank)];
  return same_host || bytes > kMostShortPieces * kShortPiece ? kLongPiece : kShortPiece;
}

/// Messages are named by the peer's rank in the transport, to which `world` gives that in MPI.
class MpiTransfer final : public Transfer {
 public:
  ~MpiTransfer() override {
    if (left_ != 0) g_lost = true;  // requests and memory stay as they are
  }

  /// What is under way is on the list, whatever happens: room for it comes first.
  void Receive(const Job& job, const Incoming& in, int world, int tag) {
    const std::int64_t piece = PieceOf(job, world, in.bytes);
    MakeRoom((in.bytes + piece - 1) / piece);
    for (std::int64_t done = 0; done < in.bytes; done += piece) {
      const auto bytes = static_cast<int>(std::min(piece, in.bytes - done));
      auto* data = static_cast<std::uint8_t*>(in.data) + done;
      MPI_Request request = MPI_REQUEST_NULL;
      Check(MPI_Irecv(data, bytes, MPI_BYTE, world, tag, job.data, &request), "MPI_Irecv", in.peer);
      Add(request, in.peer, bytes);
    }
  }
  void Send(const Job& job, const Outgoing& out, int world, int tag) {
    const std::int64_t piece = PieceOf(job, world, out.bytes);
    MakeRoom((out.bytes + piece - 1) / piece);
    for (std::int64_t done = 0; done < out.bytes; done += piece) {
      const auto bytes = static_cast<int>(std::min(piece, out.bytes - done));
      const auto* data = static_cast<const std::uint8_t*>(out.data) + done;
      MPI_Request request = MPI_REQUEST_NULL;
      Check(MPI_Isend(data, bytes, MPI_BYTE, world, tag, job.data, &request), "MPI_Isend",
            out.peer);
      Add(request, out.peer, -1);
    }
  }

  bool Poll() override {
    if (left_ == 0) return true;
    const MpiCall call;
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  indices_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) Check(code, "MPI_Testsome");
    for (int i = 0; i < count; ++i) {
      Finish(static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]),
             statuses_[static_cast<std::size_t>(i)], code == MPI_ERR_IN_STATUS);
    }
    return left_ == 0;
  }

  [[nodiscard]] std::vector<int> Waiting() const override {
    std::vector<int> peers;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) peers.push_back(pieces_[i].peer);
    }
    std::ranges::sort(peers);
    peers.erase(std::ranges::unique(peers).begin(), peers.end());
    return peers;
  }

 private:
  struct Piece {
    int peer;
    int bytes;  ///< to be received; -1 for what is sent
  };

  void MakeRoom(std::int64_t count) {
    const std::size_t room = requests_.size() + static_cast<std::size_t>(count);
    requests_.reserve(room);
    pieces_.reserve(room);
    indices_.reserve(room);
    statuses_.reserve(room);
  }

  void Add(MPI_Request request, int peer, int bytes) {
    requests_.push_back(request);
    pieces_.push_back({peer, bytes});
    indices_.push_back(0);
    statuses_.emplace_back();
    ++left_;
  }

  void Finish(std::size_t i, const MPI_Status& status, bool has_error) {
    const Piece& piece = pieces_[i];
    --left_;
    int error = MPI_SUCCESS;
    if (has_error) MPI_Error_class(status.MPI_ERROR, &error);
    if (error != MPI_SUCCESS && error != MPI_ERR_TRUNCATE) {
      Check(status.MPI_ERROR, piece.bytes < 0 ? "sending" : "receiving", piece.peer);
    }
    if (piece.bytes < 0) return;
    int bytes = 0;
    Check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count", piece.peer);
    if (bytes != piece.bytes) {
      throw TransportError("a message of " + std::to_string(bytes) + " bytes came from rank " +
                               std::to_string(piece.peer) + " where one of " +
                               std::to_string(piece.bytes) + " was due",
                           piece.peer);
    }
  }

  std::vector<MPI_Request> requests_;
  std::vector<Piece> pieces_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::size_t left_ = 0;
};

/// What the members of a new group tell one another.
struct Join {
  std::uint64_t members;  ///< a hash of their list
  std::int64_t context;   ///< the least that the sender has free
  std::uint64_t host;     ///< a hash of its name
};

constexpr std::uint64_t kHashBegin = 0xcbf29ce484222325U;

/// One step of FNV-1a.
std::uint64_t Hashed(std::uint64_t hash, std::uint32_t value) {
  return (hash ^ value) * 0x100000001b3U;
}

std::uint64_t HashOf(std::span<const int> ranks) {
  std::uint64_t hash = kHashBegin;
  for (const int rank : ranks) hash = Hashed(hash, static_cast<std::uint32_t>(rank));
  return hash;
}

/// Of this host's name.
std::uint64_t HostHash() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  Check(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  std::uint64_t hash = kHashBegin;
  for (int i = 0; i < length; ++i) {
    hash = Hashed(hash, static_cast<std::uint8_t>(name.at(static_cast<std::size_t>(i))));
  }
  return hash;
}

/// Everybody's Join, as soon as all have told; `world` are their ranks in MPI, `names` the numbers
/// by which RankLost names them, of `size`.
std::vector<Join> Meet(const Job& job, const std::vector<int>& world, std::span<const int> names,
                       int size, double timeout) {
  const Clock::time_point deadline = After(timeout);
  // Sends may outlive this call.
  auto* mine = new Join{HashOf(world), job.next_context, HostHash()};
  std::vector<Join> joins(world.size());
  std::vector<bool> joined(world.size(), false);
  Mailbox<Join> mailbox(job.control, job.rank, world, job.join_tag);
  for (std::size_t i = 0; i < world.size(); ++i) {
    if (world[i] == job.rank) {
      joins[i] = *mine;
      joined[i] = true;
      continue;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    Check(MPI_Isend(mine, sizeof(Join), MPI_BYTE, world[i], job.join_tag, job.control, &request),
          "MPI_Isend");
    MPI_Request_free(&request);
  }
  while (std::ranges::find(joined, false) != joined.end() && Clock::now() <= deadline) {
    try {
      CheckInterrupt();
    } catch (...) {
      g_lost = true;
      throw;
    }
    mailbox.Poll([&](std::size_t i, const Join& theirs) {
      if (theirs.members != mine->members) {  // left by a group that did not come about
        mailbox.Await(i);
        return;
      }
      joins[i] = theirs;
      joined[i] = true;
    });
    Pause();
  }
  std::vector<int> lost;
  for (std::size_t i = 0; i < world.size(); ++i) {
    if (!joined[i]) lost.push_back(names[i]);
  }
  if (lost.empty()) return joins;
  g_lost = true;  // they will not come to MPI_Finalize either
  throw RankLost(NameRanks(lost) + " of " + std::to_string(size) +
                     " lost before the group was made (no answer for " + Seconds(timeout) + ")",
                 lost);
}

/// The context of a new group: the greatest of those that its members propose.
int ContextOf(Job& job, const std::vector<Join>& joins) {
  return TakeContext(job, static_cast<int>(std::ranges::max(joins, {}, &Join::context).context));
}

/// Of each rank, the least on its host.
std::vector<int> HostsOf(const std::vector<Join>& joins) {
  std::vector<int> least;
  least.reserve(joins.size());
  for (const Join& one : joins) {
    const auto first = std::ranges::find(joins, one.host, &Join::host);
    least.push_back(static_cast<int>(first - joins.begin()));
  }
  return least;
}

class MpiGroup final : public Transport {
 public:
  /// `world`: the ranks' places in MPI_COMM_WORLD; this process's is among them.
  MpiGroup(Job& job, std::vector<int> world, int context)
      : job_(job),
        world_(std::move(world)),
        context_(context),
        rank_(static_cast<int>(std::ranges::find(world_, job.rank) - world_.begin())),
        alarms_(job.control, job.rank, world_, context),
        raised_(world_.size(), false) {}

  [[nodiscard]] std::string name() const override { return "mpi"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(world_.size()); }
  [[nodiscard]] int ranks_on_host() const override {
    const int here = HostOf(job_.rank);
    return static_cast<int>(
        std::ranges::count_if(world_, [&](int world) { return HostOf(world) == here; }));
  }

  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    if (!IsRunning()) throw TransportError("MPI has been finalised", -1);
    CheckStart(*this, out, in, tag);
    const MpiCall call;
    const int full_tag = context_ * kTags + tag;
    auto transfer = std::make_unique<MpiTransfer>();
    for (const Incoming& message : in) {
      transfer->Receive(job_, message, World(message.peer), full_tag);
    }
    for (const Outgoing& message : out) {
      transfer->Send(job_, message, World(message.peer), full_tag);
    }
    return transfer;
  }

  void RaiseAlarm() noexcept override {
    raised_[static_cast<std::size_t>(rank_)] = true;
    g_lost = true;
    if (!IsRunning()) return;
    const MpiCall call;
    static const std::uint8_t message = 1;  // stays while sends are under way
    std::vector<MPI_Request> sends;
    for (const int world : world_) {
      if (world == job_.rank) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Isend(&message, 1, MPI_BYTE, world, context_, job_.control, &request) ==
          MPI_SUCCESS) {
        sends.push_back(request);
      }
    }
    // MPI moves only while it is called: long enough for a connection to be made.
    constexpr double patience = 0.2;
    const Clock::time_point deadline = After(patience);
    for (int done = 0; done == 0 && Clock::now() < deadline;) {
      if (MPI_Testall(static_cast<int>(sends.size()), sends.data(), &done, MPI_STATUSES_IGNORE) !=
          MPI_SUCCESS) {
        break;
      }
    }
  }

  [[nodiscard]] std::vector<bool> Alarms() override {
    if (IsRunning()) {
      alarms_.Poll([&](std::size_t peer, std::uint8_t) {
        raised_[peer] = true;
        g_lost = true;
      });
    }
    return raised_;
  }

  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    if (!IsRunning()) throw TransportError("MPI has been finalised", -1);
    CheckSubgroup(*this, ranks);
    std::vector<int> world;
    world.reserve(ranks.size());
    for (const int rank : ranks) world.push_back(World(rank));
    const int context = ContextOf(job_, Meet(job_, world, ranks, size(), timeout));
    return std::make_unique<MpiGroup>(job_, std::move(world), context);
  }

  [[noreturn]] void Abort(const std::string& reason) noexcept override {
    std::fprintf(stderr, "cpd: rank %d ends the job: %s\n", rank_, reason.c_str());
    if (IsRunning()) MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
  }

 private:
  [[nodiscard]] int HostOf(int world) const { return job_.host[static_cast<std::size_t>(world)]; }

  [[nodiscard]] int World(int rank) const { return world_[static_cast<std::size_t>(rank)]; }

  Job& job_;
  std::vector<int> world_;
  int context_;
  int rank_;
  Mailbox<std::uint8_t> alarms_;
  std::vector<bool> raised_;
};

Transport* Open(double timeout) {
  const Clock::time_point deadline = After(timeout);
  Job& job = TheJob(timeout);
  if (g_lost) throw Error("a rank was lost: MPI_COMM_WORLD cannot be opened again; use Subgroup");
  std::vector<int> world = AllOf(job);
  const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
  const std::vector<Join> joins = Meet(job, world, world, job.size, left);
  if (job.host.empty()) job.host = HostsOf(joins);
  const int context = ContextOf(job, joins);
  return new MpiGroup(job, std::move(world), context);
}

}  // namespace
}  // namespace cpd

const cpd::MpiLibrary* cpd_mpi_library() {
  static constexpr cpd::MpiLibrary library{cpd::kTransportVersion, cpd::Open};
  return &library;
}
