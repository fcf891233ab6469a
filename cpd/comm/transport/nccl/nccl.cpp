// SPDX-License-Identifier: Apache-2.0
//
// Messages over NCCL, between GPUs. Only this file includes nccl.h. libnccl is loaded when it is
// needed, so this library loads without libnccl.
//
// Each Start is one NCCL group on the stream. The communicator is nonblocking: from ncclGroupEnd
// until NCCL has queued the group, no other call of NCCL is allowed. Transfers therefore wait in a
// queue, and Poll advances the queue. NCCL matches messages by their order, which the transport's
// contract makes equal on all ranks. So tags are not needed.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/base/backoff.h"
#include "cpd/comm/transport/libraries.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

/// The oldest version of NCCL that has nonblocking communicators.
constexpr int kOldest = 21400;

/// Pointers to the functions of libnccl.
struct Api {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommGetAsyncError) get_state;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
};

/// Opens libnccl. Tries CPD_NCCL_LIBRARY, or if it is not set: the libnccl that the process has
/// loaded (torch brings one), the one that the loader finds, and the one that was found when CPD
/// was built.
void* OpenLibrary() {
  constexpr const char* name = "libnccl.so.2";
  const char* given = std::getenv("CPD_NCCL_LIBRARY");
  const bool is_given = given != nullptr && *given != '\0';
  void* library = is_given ? dlopen(given, RTLD_NOW | RTLD_LOCAL)
                           : dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr && !is_given) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
#ifdef CPD_NCCL_BUILT_WITH
  if (library == nullptr && !is_given) library = dlopen(CPD_NCCL_BUILT_WITH, RTLD_NOW | RTLD_LOCAL);
#endif
  if (library == nullptr) {
    const char* why = dlerror();
    throw MachineError(
        std::string("NCCL cannot be loaded (PyPI: nvidia-nccl-cu13; or name the library in "
                    "CPD_NCCL_LIBRARY): ") +
        (why == nullptr ? name : why));
  }
  return library;
}

template <class Function>
void Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw MachineError(std::string("this NCCL has no ") + name);
}

Api Load() {
  void* library = OpenLibrary();
  Api api{};
  Find(library, "ncclGetVersion", api.get_version);
  int version = 0;
  if (api.get_version(&version) != ncclSuccess || version < kOldest) {
    throw Error("NCCL must be 2.14 or newer (code " + std::to_string(kOldest) + "), got code " +
                std::to_string(version));
  }
  Find(library, "ncclGetErrorString", api.get_error_string);
  Find(library, "ncclGetUniqueId", api.get_unique_id);
  Find(library, "ncclCommInitRankConfig", api.init);
  Find(library, "ncclCommGetAsyncError", api.get_state);
  Find(library, "ncclCommFinalize", api.finalize);
  Find(library, "ncclCommDestroy", api.destroy);
  Find(library, "ncclCommAbort", api.abort);
  Find(library, "ncclGroupStart", api.group_start);
  Find(library, "ncclGroupEnd", api.group_end);
  Find(library, "ncclSend", api.send);
  Find(library, "ncclRecv", api.receive);
  return api;
}

const Api& Nccl() {
  static const Api api = Load();  // tried again at the next call if it throws
  return api;
}

[[noreturn]] void Fail(ncclResult_t result, const char* call) {
  throw TransportError(std::string(call) + ": " + Nccl().get_error_string(result), -1);
}

/// Throws TransportError for a failure. A nonblocking communicator's ncclInProgress is not a
/// failure.
void Check(ncclResult_t result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress) Fail(result, call);
}

void CheckCuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw TransportError(std::string(call) + ": " + cudaGetErrorString(status), -1);
  }
}

/// Makes a device the thread's current device while this object exists; does nothing for -1. If
/// CUDA cannot switch the device, CUDA's next call reports the error.
class WithDevice {
 public:
  explicit WithDevice(int device) noexcept {
    if (device < 0 || cudaGetDevice(&before_) != cudaSuccess || before_ == device) {
      before_ = -1;
    } else {
      cudaSetDevice(device);
    }
  }
  ~WithDevice() {
    if (before_ >= 0) cudaSetDevice(before_);
  }
  WithDevice(const WithDevice&) = delete;
  WithDevice& operator=(const WithDevice&) = delete;

 private:
  int before_ = -1;
};

/// A new nonblocking stream. It is null if messages are in host memory or `is_wanted` is false.
class OwnStream {
 public:
  OwnStream(int device, bool is_wanted) : device_(device) {
    if (device < 0 || !is_wanted) return;
    const WithDevice current(device);
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~OwnStream() {
    if (stream_ == nullptr) return;
    const WithDevice current(device_);
    cudaStreamDestroy(stream_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

/// The messages of one call of Transport::Start.
struct Group {
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  bool asked = false;   ///< its messages were passed to NCCL
  bool queued = false;  ///< NCCL has put them on the stream
  bool done = false;
  cudaEvent_t event = nullptr;  ///< after it on the stream; null with host memory
};

/// A communicator and the groups of messages that NCCL has not queued yet. Transfers share it with
/// the transport.
class Channel {
 public:
  /// Throws TransportError if not all ranks have joined within `timeout` seconds.
  Channel(const NcclId& id, int rank, int size, int device, void* stream, double timeout)
      : device_(device), own_(device, stream == nullptr) {
    const WithDevice current(device_);
    stream_ = stream == nullptr ? own_.get() : static_cast<cudaStream_t>(stream);
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    Check(api_.init(&comm_, size, unique, rank, &config), "ncclCommInitRankConfig");
    const ncclResult_t result = AwaitIdle(timeout);
    if (result == ncclSuccess) return;
    Break();
    if (result != ncclInProgress) Fail(result, "ncclCommInitRankConfig");
    throw TransportError(
        "NCCL: not all of " + std::to_string(size) + " ranks joined the group in time", -1);
  }

  /// Finalizes the communicator if all transfers are done, and aborts it otherwise.
  ~Channel() {
    constexpr double patience = 10;  // for the other ranks, which finish too
    if (comm_ != nullptr && outstanding_ == 0) {
      const WithDevice current(device_);
      const ncclResult_t asked = api_.finalize(comm_);
      if ((asked == ncclSuccess || asked == ncclInProgress) && AwaitIdle(patience) == ncclSuccess) {
        api_.destroy(comm_);
        return;
      }
    }
    Break();
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void Add(const std::shared_ptr<Group>& group) {
    waiting_.push_back(group);
    ++outstanding_;
    Advance();
  }

  bool Poll(Group& group) {
    if (group.done) return true;
    Advance();
    if (!group.queued) return false;
    if (group.event != nullptr) {
      const WithDevice current(device_);
      const cudaError_t status = cudaEventQuery(group.event);
      if (status == cudaErrorNotReady) {
        (void)State();  // throws for a peer's failure
        return false;
      }
      CheckCuda(status, "cudaEventQuery");
      cudaEventDestroy(group.event);
      group.event = nullptr;
    }
    group.done = true;
    --outstanding_;
    return true;
  }

  /// Aborts all transfers. The group of ranks cannot be used afterwards.
  void Break() noexcept {
    ncclComm_t comm = std::exchange(comm_, nullptr);
    if (comm == nullptr) return;
    waiting_.clear();
    const WithDevice current(device_);
    api_.abort(comm);
  }

 private:
  [[nodiscard]] ncclResult_t RawState() const noexcept {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = api_.get_state(comm_, &state);
    return asked == ncclSuccess ? state : asked;
  }

  /// Returns the communicator's state. Throws TransportError for a state other than success and in
  /// progress.
  ncclResult_t State() {
    if (comm_ == nullptr) throw TransportError("NCCL: the group was given up", -1);
    const ncclResult_t state = RawState();
    Check(state, "NCCL");
    return state;
  }

  /// Waits while the communicator's state is ncclInProgress, for up to `timeout` seconds. Returns
  /// the communicator's last state.
  [[nodiscard]] ncclResult_t AwaitIdle(double timeout) const noexcept {
    using Clock = std::chrono::steady_clock;
    constexpr double most = 1e9;
    const auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(std::clamp(timeout, 0., most)));
    ncclResult_t state = RawState();
    Backoff backoff;
    while (state == ncclInProgress && Clock::now() < end) {
      backoff.Wait();
      state = RawState();
    }
    return state;
  }

  /// Passes waiting groups of messages to NCCL, one after the other, until none is left or NCCL is
  /// still queuing a group.
  void Advance() {
    const WithDevice current(device_);
    while (State() == ncclSuccess && !waiting_.empty()) {
      Group& group = *waiting_.front();
      if (!group.asked) {
        group.asked = true;
        Ask(group);
        continue;
      }
      if (device_ >= 0) {
        CheckCuda(cudaEventCreateWithFlags(&group.event, cudaEventDisableTiming),
                  "cudaEventCreate");
        CheckCuda(cudaEventRecord(group.event, stream_), "cudaEventRecord");
      }
      group.queued = true;
      waiting_.pop_front();
    }
  }

  void Ask(const Group& group) {
    Check(api_.group_start(), "ncclGroupStart");
    ncclResult_t result = ncclSuccess;
    for (const Incoming& message : group.in) {
      if (message.bytes == 0 || result != ncclSuccess) continue;
      result = api_.receive(message.data, static_cast<std::size_t>(message.bytes), ncclUint8,
                            message.peer, comm_, stream_);
    }
    for (const Outgoing& message : group.out) {
      if (message.bytes == 0 || result != ncclSuccess) continue;
      result = api_.send(message.data, static_cast<std::size_t>(message.bytes), ncclUint8,
                         message.peer, comm_, stream_);
    }
    Check(api_.group_end(), "ncclGroupEnd");
    Check(result, "ncclSend or ncclRecv");
  }

  const Api& api_ = Nccl();
  ncclComm_t comm_ = nullptr;
  int device_;
  OwnStream own_;
  cudaStream_t stream_ = nullptr;
  std::deque<std::shared_ptr<Group>> waiting_;
  int outstanding_ = 0;
};

class NcclTransfer final : public Transfer {
 public:
  NcclTransfer(std::shared_ptr<Channel> channel, std::shared_ptr<Group> group)
      : channel_(std::move(channel)), group_(std::move(group)) {}
  ~NcclTransfer() override {
    if (!group_->done) channel_->Break();
  }

  bool Poll() override { return channel_->Poll(*group_); }

  /// Returns the peers of all messages of this transfer, or none after the transfer is complete.
  /// NCCL does not report which of the peers are missing.
  [[nodiscard]] std::vector<int> Waiting() const override {
    std::vector<int> peers;
    if (group_->done) return peers;
    for (const Incoming& message : group_->in) peers.push_back(message.peer);
    for (const Outgoing& message : group_->out) peers.push_back(message.peer);
    std::ranges::sort(peers);
    peers.erase(std::ranges::unique(peers).begin(), peers.end());
    return peers;
  }

 private:
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<Group> group_;
};

class NcclGroup final : public Transport {
 public:
  NcclGroup(const NcclId& id, int rank, int size, int device, void* stream, double timeout)
      : rank_(rank),
        size_(size),
        device_(device),
        channel_(std::make_shared<Channel>(id, rank, size, device, stream, timeout)) {}

  [[nodiscard]] std::string name() const override { return "nccl"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  /// Returns 1: NCCL does not report how many ranks share a host, and a host has enough cores for a
  /// rank on each of its GPUs.
  [[nodiscard]] int ranks_on_host() const override { return 1; }
  [[nodiscard]] Device memory() const override { return device_ < 0 ? Device::cpu : Device::cuda; }

  [[nodiscard]] int device_index() const override { return device_ < 0 ? 0 : device_; }

  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    CheckStart(*this, out, in, tag);
    auto group = std::make_shared<Group>();
    group->out.assign(out.begin(), out.end());
    group->in.assign(in.begin(), in.end());
    auto transfer = std::make_unique<NcclTransfer>(channel_, group);
    channel_->Add(group);
    return transfer;
  }

  void RaiseAlarm() noexcept override {}
  [[nodiscard]] std::vector<bool> Alarms() override { return {}; }

  std::unique_ptr<Transport> Subgroup(std::span<const int> /*ranks*/, double /*timeout*/) override {
    throw Error(
        "NCCL makes no group of the ranks that are left: give them a new MakeNcclId by other means "
        "and open a transport with it");
  }

  [[noreturn]] void Abort(const std::string& reason) noexcept override {
    std::fprintf(stderr, "cpd: rank %d ends: %s\n", rank_, reason.c_str());
    std::_Exit(1);
  }

 private:
  int rank_, size_, device_;
  std::shared_ptr<Channel> channel_;
};

void MakeId(NcclId* id) {
  ncclUniqueId unique;
  Check(Nccl().get_unique_id(&unique), "ncclGetUniqueId");
  std::memcpy(id->data(), &unique, sizeof unique);
}

int GpuCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Transport* Open(const NcclId& id, int rank, int size, int device_index, void* stream,
                double timeout) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error("rank must be 0 … size - 1, got rank " + std::to_string(rank) + " of " +
                std::to_string(size));
  }
  const int gpus = GpuCount();
  if (device_index < -1 || device_index >= gpus) {
    throw Error("device_index must be -1 (host memory) or below " + std::to_string(gpus) +
                ", the number of GPUs, got " + std::to_string(device_index));
  }
  return new NcclGroup(id, rank, size, device_index, stream, timeout);
}

}  // namespace
}  // namespace cpd

const cpd::NcclLibrary* cpd_nccl_library() {
  static constexpr cpd::NcclLibrary library{cpd::kTransportVersion, cpd::MakeId, cpd::Open};
  return &library;
}
