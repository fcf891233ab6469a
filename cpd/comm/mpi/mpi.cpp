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
#include <pthread.h>
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
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/base/interrupt.h"
#include "cpd/comm/libraries.h"
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

void Check(int code, const char* call, int peer = -1) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw TransportError(std::string(call) + ": " + text.data(), peer);
}

/// Calls into MPI that move messages: none of them waits. Open MPI 4.1 can lock itself up in one
/// when a peer dies during a long send over TCP; a process to which that happens is of no use to
/// itself or others, and is ended.
class Call {
 public:
  Call() { ++inside_; }
  ~Call() {
    ++returned_;
    --inside_;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Starts a thread that looks on. It counts its own turns, not the clock: a process that was
  /// stopped has had none.
  static void Watch() {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the other threads
    std::thread(Look).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

 private:
  static void Look() {
    constexpr int patience = 30;  // seconds; the longest call copies a piece of a message
    std::uint64_t returned = 0;
    for (int turns = 0; turns < patience;) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      const bool is_stuck = inside_ > 0 && returned_ == returned;
      turns = is_stuck ? turns + 1 : 0;
      returned = returned_;
    }
    std::fprintf(stderr, "cpd: a call to MPI did not return in %d s (was a rank lost?)\n",
                 patience);
    std::_Exit(1);
  }

  static inline std::atomic<int> inside_{0};
  static inline std::atomic<std::uint64_t> returned_{0};
};

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

void StartMpi() {
  int started = 0;
  int ended = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (ended != 0) throw Error("MPI has been finalised in this process and cannot start again");
  if (started == 0) {
    Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    if (std::atexit(EndAtExit) != 0) throw Error("no room to end MPI at exit (atexit)");
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

MPI_Comm Duplicate(MPI_Comm from) {
  MPI_Comm copy = MPI_COMM_NULL;
  Check(MPI_Comm_dup(from, &copy), "MPI_Comm_dup");
  Check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

std::vector<int> Hosts(const Job& job) {
  MPI_Comm host = MPI_COMM_NULL;
  Check(MPI_Comm_split_type(job.control, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
  int least = job.rank;
  Check(MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MIN, host), "MPI_Allreduce");
  Check(MPI_Comm_free(&host), "MPI_Comm_free");
  std::vector<int> all(static_cast<std::size_t>(job.size));
  Check(MPI_Allgather(&least, 1, MPI_INT, all.data(), 1, MPI_INT, job.control), "MPI_Allgather");
  return all;
}

/// Collective over MPI_COMM_WORLD.
Job* MakeJob() {
  auto job = std::make_unique<Job>();
  job->data = Duplicate(MPI_COMM_WORLD);
  job->control = Duplicate(MPI_COMM_WORLD);
  Check(MPI_Comm_rank(job->data, &job->rank), "MPI_Comm_rank");
  Check(MPI_Comm_size(job->data, &job->size), "MPI_Comm_size");
  int* most = nullptr;
  int found = 0;
  Check(MPI_Comm_get_attr(job->data, MPI_TAG_UB, static_cast<void*>(&most), &found),
        "MPI_Comm_get_attr");
  const std::int64_t tags = found != 0 ? std::int64_t{*most} + 1 : kTags;
  job->contexts = static_cast<int>(tags / kTags);
  job->join_tag = kTags - 1;
  job->contexts = std::min(job->contexts, job->join_tag);  // alarms have the tags below
  job->host = Hosts(*job);
  Call::Watch();
  return job.release();
}

Job& TheJob() {
  static std::mutex mutex;
  static Job* job = nullptr;
  const std::lock_guard lock(mutex);
  StartMpi();
  if (job == nullptr) job = MakeJob();
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

  void Receive(const Job& job, const Incoming& in, int world, int tag) {
    const std::int64_t piece = PieceOf(job, world, in.bytes);
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
    const Call call;
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
    if (has_error) Check(status.MPI_ERROR, piece.bytes < 0 ? "sending" : "receiving", piece.peer);
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

/// Receives on Job::control, one from each peer; those that have not arrived are cancelled at the
/// end, which asks nothing of the peers.
template <class Message>
class Mailbox {
 public:
  Mailbox(const Job& job, std::vector<int> world, int tag)
      : job_(job),
        tag_(tag),
        world_(std::move(world)),
        requests_(world_.size(), MPI_REQUEST_NULL),
        indices_(world_.size()),
        messages_(world_.size()) {
    for (std::size_t i = 0; i < world_.size(); ++i) {
      if (world_[i] != job.rank) Await(i);
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
    Check(MPI_Irecv(&messages_[i], sizeof(Message), MPI_BYTE, world_[i], tag_, job_.control,
                    &requests_[i]),
          "MPI_Irecv");
  }
  /// Calls arrived(i, message) for each that has come; a receive that failed counts as not come.
  template <class Function>
  void Poll(Function arrived) {
    const Call call;
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
  const Job& job_;
  int tag_;
  std::vector<int> world_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<Message> messages_;
};

using Clock = std::chrono::steady_clock;

Clock::time_point After(double seconds) {
  constexpr double most = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::clamp(seconds, 0.0, most)));
}

/// What the members of a new group tell one another.
struct Join {
  std::uint64_t members;  ///< a hash of their list
  std::int64_t context;   ///< the least that the sender has free
};

/// FNV-1a over the ranks.
std::uint64_t HashOf(std::span<const int> ranks) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const int rank : ranks) {
    hash = (hash ^ static_cast<std::uint32_t>(rank)) * 0x100000001b3U;
  }
  return hash;
}

/// The context of a new group: the greatest of those that its members propose, as soon as all
/// have. `world` are their ranks in MPI.
int AgreeOnContext(Job& job, const std::vector<int>& world, double timeout) {
  // Sends may outlive this call.
  auto* mine = new Join{HashOf(world), job.next_context};
  std::int64_t greatest = mine->context;
  std::vector<bool> joined(world.size(), false);
  Mailbox<Join> mailbox(job, world, job.join_tag);
  for (std::size_t i = 0; i < world.size(); ++i) {
    if (world[i] == job.rank) {
      joined[i] = true;
      continue;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    Check(MPI_Isend(mine, sizeof(Join), MPI_BYTE, world[i], job.join_tag, job.control, &request),
          "MPI_Isend");
    MPI_Request_free(&request);
  }
  const Clock::time_point deadline = After(timeout);
  while (std::ranges::find(joined, false) != joined.end()) {
    CheckInterrupt();
    mailbox.Poll([&](std::size_t i, const Join& theirs) {
      if (theirs.members != mine->members) {  // left by a group that did not come about
        mailbox.Await(i);
        return;
      }
      joined[i] = true;
      greatest = std::max(greatest, theirs.context);
    });
    if (Clock::now() > deadline) break;
  }
  for (std::size_t i = 0; i < world.size(); ++i) {
    if (!joined[i]) {
      throw TransportError(
          "rank " + std::to_string(world[i]) + " of MPI_COMM_WORLD did not join the group in time",
          static_cast<int>(i));
    }
  }
  return TakeContext(job, static_cast<int>(greatest));
}

class MpiGroup final : public Transport {
 public:
  /// `world`: the ranks' places in MPI_COMM_WORLD; this process's is among them.
  MpiGroup(Job& job, std::vector<int> world, int context)
      : job_(job),
        world_(std::move(world)),
        context_(context),
        rank_(static_cast<int>(std::ranges::find(world_, job.rank) - world_.begin())),
        alarms_(job, world_, context),
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
    const Call call;
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
    const Call call;
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
    try {
      const int context = AgreeOnContext(job_, world, timeout);
      return std::make_unique<MpiGroup>(job_, std::move(world), context);
    } catch (...) {
      g_lost = true;  // a member did not come, and will not come to MPI_Finalize either
      throw;
    }
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

Transport* Open() {
  Job& job = TheJob();
  if (g_lost) throw Error("a rank was lost: MPI_COMM_WORLD cannot be opened again; use Subgroup");
  std::vector<int> world(static_cast<std::size_t>(job.size));
  std::iota(world.begin(), world.end(), 0);
  int context = job.next_context;
  Check(MPI_Allreduce(MPI_IN_PLACE, &context, 1, MPI_INT, MPI_MAX, job.control), "MPI_Allreduce");
  return new MpiGroup(job, std::move(world), TakeContext(job, context));
}

}  // namespace
}  // namespace cpd

const cpd::MpiLibrary* cpd_mpi_library() {
  static constexpr cpd::MpiLibrary library{cpd::kTransportVersion, cpd::Open};
  return &library;
}
