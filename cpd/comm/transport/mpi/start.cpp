// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport/mpi/start.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>

#include "cpd/base/backoff.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/quiet_thread.h"
#include "cpd/comm/transport/mpi/attendance.h"
#include "cpd/comm/transport/transport.h"
#include "cpd/spec/error.h"

namespace cpd::mpi {
namespace {

void EndAtExit() {
  if (IsRunning() && !g_lost) MPI_Finalize();
}

/// Ignores SIGPIPE: Open MPI writes to sockets whose other end may be dead, and this must not end
/// the process. Python ignores the signal anyway.
void IgnoreBrokenPipes() {
  struct sigaction now{};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    now.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &now, nullptr);
  }
}

/// Returns the error that all calls throw after MPI could not be started. Empty if no start has
/// failed.
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

/// Calls look(), which throws if this process must stop waiting for MPI's start (Ctrl-C). If look()
/// throws, marks the start as failed in this process, calls tell(), which informs the other ranks,
/// and rethrows.
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

/// The state of a call of MPI_Init_thread that runs in a separate thread. MPI_Init_thread waits for
/// all ranks of the job, and never returns if one of them has died.
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
  Backoff backoff;
  while (!start.done) {
    backoff.Wait();
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
  if (ended != 0) throw Error("MPI has been finalized in this process and cannot start again");
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

/// Returns the greatest tag that this MPI allows.
int LastTag() {
  int* most = nullptr;
  int found = 0;
  Check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&most), &found),
        "MPI_Comm_get_attr");
  return found != 0 ? *most : kTags - 1;
}

/// Lets a rank tell the others that it has given up, while the ranks make the job's communicators.
/// No other communicator exists yet, so these messages use MPI_COMM_WORLD with a tag that nothing
/// else uses. They are sent only if a rank is lost. Until the communicators are made, errors of
/// MPI_COMM_WORLD are returned, not fatal.
class Farewells {
 public:
  explicit Farewells(const Job& job)
      : rank_(job.rank),
        size_(job.size),
        said_(static_cast<std::size_t>(job.size)),
        mailbox_(MPI_COMM_WORLD, job.rank, AllOf(job), LastTag()) {
    said_[static_cast<std::size_t>(rank_)] = true;  // this rank sends itself nothing
  }

  /// Returns whether another rank has given up.
  bool Heard() {
    mailbox_.Poll([&](std::size_t peer, std::uint8_t) {
      said_[peer] = true;
      heard_ = true;
    });
    return heard_;
  }

  /// Tells the other ranks that this rank gives up. Receives such messages of other ranks for
  /// Grace(timeout) seconds. Then throws RankLost with the ranks that sent none.
  [[noreturn]] void Fail(const std::string& why, double timeout) {
    Tell();
    const Clock::time_point deadline = After(Grace(timeout));
    Backoff backoff;
    do {
      backoff.Wait();
      Heard();
    } while (Clock::now() < deadline);  // MPI makes progress only inside its calls
    std::vector<int> lost;
    for (int peer = 0; peer < size_; ++peer) {
      if (!said_[static_cast<std::size_t>(peer)]) lost.push_back(peer);
    }
    FailStart(why, lost, size_);
  }

  /// Tells the other ranks that this rank gives up.
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

/// Makes a duplicate of MPI_COMM_WORLD together with all ranks. `copy` must be static, because MPI
/// may write it after this rank has given up.
void Duplicate(MPI_Comm* copy, Farewells& farewells, double timeout, Clock::time_point deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  Check(MPI_Comm_idup(MPI_COMM_WORLD, copy, &request), "MPI_Comm_idup");
  int done = 0;
  Backoff backoff;
  while (true) {
    {
      const MpiCall call;
      Check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
    }
    if (done != 0) break;
    OrTell(CheckInterrupt, [&] { farewells.Tell(); });
    if (farewells.Heard()) farewells.Fail("another rank gave up", timeout);
    if (Clock::now() > deadline) farewells.Fail("no answer for " + Seconds(timeout), timeout);
    backoff.Wait();
  }
  Check(MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

/// Creates the Job, the MPI state that all transports of this process share, with its
/// communicators. All ranks of MPI_COMM_WORLD must call it. Throws RankLost.
Job* MakeJob(double timeout) {
  static Job job;  // MPI may write it even where this fails
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

}  // namespace

std::vector<int> AllOf(const Job& job) {
  std::vector<int> world(static_cast<std::size_t>(job.size));
  std::iota(world.begin(), world.end(), 0);
  return world;
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

}  // namespace cpd::mpi
