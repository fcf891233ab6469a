// SPDX-License-Identifier: Apache-2.0
//
// Tests that MPI processes continue after the last process dies or stops in the middle of an
// exchange. mpirun starts them with its recovery option on. The other processes detect the loss,
// agree on it, and continue as a new group. The first of them then prints the result for the
// calling test, because mpirun returns the lost process's exit status.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "tests/testing/mpi_world.h"
#include "tests/testing/refusal.h"
#include "tests/testing/transport_checks.h"

namespace cpd::testing {
namespace {

/// Returns the process id of rank `rank`, which that rank sends to all lower ranks.
pid_t process_of(Transport& transport, int rank) {
  pid_t mine = getpid();
  pid_t theirs = mine;
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  if (transport.rank() == rank) {
    for (int peer = 0; peer < rank; ++peer) out.push_back({peer, &mine, sizeof mine});
  } else {
    in.push_back({rank, &theirs, sizeof theirs});
  }
  const auto transfer = transport.Start(out, in, 0);
  await("a process's number", [&] { return transfer->Poll(); });
  return theirs;
}

/// Polls an exchange for at least two seconds and at most a minute, until it waits for exactly one
/// rank. (On a busy machine other ranks may be late.) Returns the ranks for which the exchange
/// still waits.
std::vector<int> silent_after_a_while(Messages& exchange) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    while (!exchange.transfer().Poll()) {
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited > std::chrono::minutes(1)) break;
      if (waited > std::chrono::seconds(2) && exchange.transfer().Waiting().size() == 1) break;
      std::this_thread::yield();
    }
  } catch (const TransportError& error) {
    std::printf("reported: %s (rank %d)\n", error.what(), error.peer);
  }
  return exchange.transfer().Waiting();
}

/// Sends `signal` to the last rank, and checks what the other ranks do. The signal is sent after
/// the last rank has started its messages if `in_the_middle` is true, and before if it is false.
void check_lost(int signal, bool in_the_middle, std::int64_t bytes) {
  const TransportEnd end = mpi_end();
  Transport& transport = end.transport;
  const int size = transport.size();
  const int last = size - 1;
  if (size < 2) GTEST_SKIP() << "needs two processes or more (mpirun)";
  check_equal_tags(end);
  const pid_t victim = process_of(transport, last);

  if (transport.rank() == last && !in_the_middle) raise(signal);
  Messages exchange(end, 1);
  exchange_with_all(exchange, transport, bytes);
  exchange.Start(1);
  if (transport.rank() == last) {
    if (in_the_middle) {
      (void)exchange.transfer().Poll();
      raise(signal);
    }
    FAIL() << "the last rank should be gone";
  }
  for (const int rank : silent_after_a_while(exchange)) EXPECT_EQ(rank, last);
  exchange.Abandon();
  transport.RaiseAlarm();
  std::vector<bool> survivors(static_cast<std::size_t>(size), true);
  survivors.back() = false;
  await("the survivors' alarms", [&] { return transport.Alarms() == survivors; });

  std::vector<int> ranks(static_cast<std::size_t>(last));
  std::iota(ranks.begin(), ranks.end(), 0);
  try {
    (void)transport.Subgroup(std::vector<int>{transport.rank(), last}, 0.5);
    ADD_FAILURE() << "the last rank cannot have come";
  } catch (const RankLost& error) {
    EXPECT_EQ(error.ranks, std::vector<int>{last}) << error.what();
    EXPECT_EQ(error.what(), "rank " + std::to_string(last) + " of " + std::to_string(size) +
                                " lost before the group was made (no answer for 0.5 s)");
  }
  EXPECT_REFUSAL("a rank was lost: MPI_COMM_WORLD cannot be opened again; use Subgroup",
                 MpiTransport());
  const std::unique_ptr<Transport> group = transport.Subgroup(ranks, 30);
  EXPECT_EQ(group->size(), last);
  check_sizes({*group});
  check_waiting({*group});
  check_many_tags({*group});
  if (group->rank() == 0) {
    kill(victim, SIGKILL);  // what was stopped
    if (!::testing::Test::HasFailure()) std::printf("%d survivors carry on\n", last);
    std::fflush(stdout);
  }
}

constexpr std::int64_t kLong = 5000000;
constexpr std::int64_t kShort = 200;

TEST(MpiLost, KilledBefore) { check_lost(SIGKILL, false, kLong); }
TEST(MpiLost, KilledBeforeShort) { check_lost(SIGKILL, false, kShort); }
TEST(MpiLost, KilledInTheMiddle) { check_lost(SIGKILL, true, kLong); }
TEST(MpiLost, StoppedBefore) { check_lost(SIGSTOP, false, kLong); }
TEST(MpiLost, StoppedInTheMiddle) { check_lost(SIGSTOP, true, kLong); }

}  // namespace
}  // namespace cpd::testing
