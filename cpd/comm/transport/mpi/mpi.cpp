// SPDX-License-Identifier: Apache-2.0
//
// Messages over MPI. All transports of a process share two duplicates of MPI_COMM_WORLD. The tag of
// a message consists of its transport's number (its context) and the caller's tag.
//
// So a group of survivors is made by messages among the survivors alone. There is no collective
// call, which a dead rank could hold up. A message to an older group cannot be taken for a message
// of the new group, because the tags differ.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/comm/transport/libraries.h"
#include "cpd/comm/transport/mpi/join.h"
#include "cpd/comm/transport/mpi/start.h"
#include "cpd/spec/error.h"

namespace cpd::mpi {
namespace {

/// MPI counts bytes in int, so longer messages are sent as several MPI messages (pieces). Between
/// hosts, shorter messages are sent in pieces, too. Over TCP, MPI sends a piece of less than 64
/// KiB, including its own header, at once. A longer piece waits for the receiver's answer.
constexpr std::int64_t kLongPiece = std::int64_t{1} << 30;
constexpr std::int64_t kShortPiece = std::int64_t{60} << 10;
constexpr std::int64_t kMostShortPieces = 64;

/// Returns the number of bytes of each piece in which a message is sent. Sender and receiver
/// compute the same number: both know the message's length and whether they share a host.
std::int64_t PieceOf(const Job& job, int world, std::int64_t bytes) {
  const bool same_host =
      job.host[static_cast<std::size_t>(world)] == job.host[static_cast<std::size_t>(job.rank)];
  return same_host || bytes > kMostShortPieces * kShortPiece ? kLongPiece : kShortPiece;
}

/// The messages that one call of Transport::Start sends and receives, until all are done. `peer` is
/// a rank of the transport; `world` is that rank's number in MPI_COMM_WORLD.
class MpiTransfer final : public Transfer {
 public:
  ~MpiTransfer() override {
    if (left_ != 0) g_lost = true;  // requests and memory are abandoned
  }

  /// Starts to receive a message. Reserves memory for all requests first, so that appending a
  /// request that MPI has started to requests_ cannot fail.
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
    int bytes;  ///< to be received; -1 for sends
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

class MpiGroup final : public Transport {
 public:
  /// `world`: the numbers in MPI_COMM_WORLD of the group's ranks, this process included.
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
    if (!IsRunning()) throw TransportError("MPI has been finalized", -1);
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
    // MPI advances the alarms' messages only inside its calls. So MPI_Testall is called until they
    // are sent, for up to 0.2 s. This is long enough to make a connection.
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
    if (!IsRunning()) throw TransportError("MPI has been finalized", -1);
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
}  // namespace cpd::mpi

const cpd::MpiLibrary* cpd_mpi_library() {
  static constexpr cpd::MpiLibrary library{cpd::kTransportVersion, cpd::mpi::Open};
  return &library;
}
