// SPDX-License-Identifier: Apache-2.0
//
// Helpers for calls of MPI. Only this file includes mpi.h. If MPI was started with
// MPI_THREAD_SERIALIZED, only one thread at a time may use MPI.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cpd/comm/errors.h"
#include "cpd/comm/transport/mpi/watchdog.h"

namespace cpd::mpi {

/// Set when a rank was lost or messages were abandoned: MPI_Finalize might then never return, and
/// is not called.
inline std::atomic<bool> g_lost{false};

using Clock = std::chrono::steady_clock;

inline Clock::time_point After(double seconds) {
  constexpr double most = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::clamp(seconds, 0.0, most)));
}

inline std::string Seconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  return text.data();
}

inline void Check(int code, const char* call, int peer = -1) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw TransportError(std::string(call) + ": " + text.data(), peer);
}

inline bool IsRunning() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

/// Receives messages of one type that peers may send at any time. Keeps one pending receive from
/// each peer on a communicator. The destructor cancels the receives whose message has not arrived;
/// peers need not take part.
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

  /// Posts a receive from peer i.
  void Await(std::size_t i) {
    Check(
        MPI_Irecv(&messages_[i], sizeof(Message), MPI_BYTE, world_[i], tag_, comm_, &requests_[i]),
        "MPI_Irecv");
  }
  /// Calls arrived(i, message) for each message that has arrived. Receives that failed count as not
  /// arrived.
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

}  // namespace cpd::mpi
