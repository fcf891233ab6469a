// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport/mpi/join.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "cpd/base/backoff.h"
#include "cpd/base/interrupt.h"
#include "cpd/spec/error.h"

namespace cpd::mpi {
namespace {

int TakeContext(Job& job, int context) {
  if (context >= job.contexts) {
    throw Error("this MPI has tags for " + std::to_string(job.contexts) +
                " groups in a run, all of which have been made");
  }
  job.next_context = context + 1;
  return context;
}

constexpr std::uint64_t kHashBegin = 0xcbf29ce484222325U;

/// Adds a value to an FNV-1a hash.
std::uint64_t Hashed(std::uint64_t hash, std::uint32_t value) {
  return (hash ^ value) * 0x100000001b3U;
}

std::uint64_t HashOf(std::span<const int> ranks) {
  std::uint64_t hash = kHashBegin;
  for (const int rank : ranks) hash = Hashed(hash, static_cast<std::uint32_t>(rank));
  return hash;
}

/// Returns a hash of this host's name.
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

}  // namespace

std::vector<Join> Meet(const Job& job, const std::vector<int>& world, std::span<const int> names,
                       int size, double timeout) {
  const Clock::time_point deadline = After(timeout);
  // The message of this rank. It is never freed, because MPI may still send it after this function
  // has returned.
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
  Backoff backoff;
  while (std::ranges::find(joined, false) != joined.end() && Clock::now() <= deadline) {
    try {
      CheckInterrupt();
    } catch (...) {
      g_lost = true;
      throw;
    }
    mailbox.Poll([&](std::size_t i, const Join& theirs) {
      if (theirs.members != mine->members) {  // sent for a group that was never complete
        mailbox.Await(i);
        return;
      }
      joins[i] = theirs;
      joined[i] = true;
    });
    backoff.Wait();
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

int ContextOf(Job& job, const std::vector<Join>& joins) {
  return TakeContext(job, static_cast<int>(std::ranges::max(joins, {}, &Join::context).context));
}

std::vector<int> HostsOf(const std::vector<Join>& joins) {
  std::vector<int> least;
  least.reserve(joins.size());
  for (const Join& one : joins) {
    const auto first = std::ranges::find(joins, one.host, &Join::host);
    least.push_back(static_cast<int>(first - joins.begin()));
  }
  return least;
}

}  // namespace cpd::mpi
