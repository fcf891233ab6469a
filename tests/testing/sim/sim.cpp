// SPDX-License-Identifier: Apache-2.0
//
// The backend "sim", which is the example of a new kind of device. Such a device needs a table of
// functions (Backend), here cpd_sim_backend. The table has functions for memory, for streams and
// for each operation of operations.def. Their arguments are the structs of calls.h and
// message_calls.h. A call of AddBackend returns the number that tensors on the device have
// (device.h). Nothing in cpd changes. The device's memory is host memory that neither the CPU's
// operations nor another device can access. Each stream has a thread, which works late and in
// order. Memory and operations come from tests/testing/cuda_on_cpu, which is linked a second time.
// This library therefore shares no addresses and no queues with the backend "cuda".
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "cpd/backend/backend.h"
#include "cpd/base/plans.h"
#include "tests/testing/sim/device.h"

namespace cpd::sim {
namespace {

/// Returns the backend of the CUDA emulation, which provides this device's operations and memory.
const Backend& Emulation() { return *cpd_backend(); }

std::atomic<std::int64_t> g_unknown_streams{0};
std::atomic<std::int64_t> g_queued{0};

/// The status of a call on a stream that this backend has not opened.
constexpr int kUnknownStream = -1;

/// A queue of the emulation. A thread does the queued work a while after it was queued, or earlier
/// if somebody waits for it.
class Stream {
 public:
  Stream(int device, void* queue) : launch_{device, queue} {}

  [[nodiscard]] const Launch& launch() const { return launch_; }
  /// Tells the thread that work was queued.
  void Wake() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++queued_;
    changed_.notify_all();
  }
  /// Waits until this queue's thread has done all work queued so far. Returns the work's status.
  int Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::int64_t last = awaited_ = ++queued_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ >= last || has_ended_; });
    return status_;
  }
  /// Ends the thread after it has done all queued work.
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }

  /// The thread's function.
  void Work() {
    constexpr auto kDelay = std::chrono::microseconds(300);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return queued_ > done_ || is_closed_; });
      if (queued_ == done_) break;
      changed_.wait_for(lock, kDelay, [&] { return awaited_ > done_ || is_closed_; });
      const std::int64_t last = queued_;
      lock.unlock();
      const int status = Emulation().wait(launch_);
      lock.lock();
      if (status != 0) status_ = status;
      done_ = last;
      changed_.notify_all();
    }
    has_ended_ = true;
    changed_.notify_all();
    static_cast<void>(Emulation().close_stream(launch_.device, launch_.stream));
  }

 private:
  const Launch launch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t queued_ = 0, awaited_ = 0, done_ = 0;
  int status_ = 0;
  bool is_closed_ = false;
  bool has_ended_ = false;  ///< once closed, and all is done
};

/// The open streams. The handle of a stream is a number and not an address of memory. Each device
/// also has a stream without a handle.
class Streams {
 public:
  /// Returns the list of streams. The list is never destroyed, because threads may still work while
  /// the process ends.
  static Streams& All() {
    static auto* all = new Streams;
    return *all;
  }

  int Open(int device, void** handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::uintptr_t number = ++last_;
    const int status = Add({device, number});
    if (status == 0) *handle = reinterpret_cast<void*>(number);
    return status;
  }
  /// Returns the stream of a launch; null if it is not open.
  std::shared_ptr<Stream> Find(const Launch& launch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Key key{launch.device, reinterpret_cast<std::uintptr_t>(launch.stream)};
    if (launch.stream == nullptr && !streams_.contains(key)) static_cast<void>(Add(key));
    const auto found = streams_.find(key);
    if (found != streams_.end()) return found->second;
    ++g_unknown_streams;
    return nullptr;
  }
  int Close(const Launch& launch) {
    const std::shared_ptr<Stream> stream = Find(launch);
    if (stream == nullptr) return kUnknownStream;
    stream->Close();
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.erase({launch.device, reinterpret_cast<std::uintptr_t>(launch.stream)});
    return 0;
  }
  void WaitForAll(int device) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto streams = streams_;
    lock.unlock();
    for (const auto& [key, stream] : streams) {
      if (key.first == device) stream->Wait();
    }
  }

 private:
  using Key = std::pair<int, std::uintptr_t>;

  int Add(const Key& key) {
    void* queue = nullptr;
    const int status = Emulation().open_stream(key.first, &queue);
    if (status != 0) return status;
    const auto stream = std::make_shared<Stream>(key.first, queue);
    std::thread([stream] { stream->Work(); }).detach();
    streams_[key] = stream;
    return 0;
  }

  std::mutex mutex_;
  std::uintptr_t last_ = 0;
  std::map<Key, std::shared_ptr<Stream>> streams_;
};

/// Calls a function of the CUDA emulation, which does the work of this backend, on the queue of the
/// launch's stream.
template <class Function>
int OnQueue(const Launch& launch, const Function& function) {
  const std::shared_ptr<Stream> stream = Streams::All().Find(launch);
  if (stream == nullptr) return kUnknownStream;
  Launch on = stream->launch();
  on.fast = launch.fast;
  const int status = function(on);
  stream->Wake();
  return status;
}

template <class Call, int (*Backend::*kOperation)(const Launch&, const Call&)>
int Operate(const Launch& launch, const Call& call) {
  return OnQueue(launch, [&](const Launch& on) { return (Emulation().*kOperation)(on, call); });
}

const char* Describe(int status) {
  return status == kUnknownStream ? "no stream of this device" : Emulation().describe(status);
}

int Wait(const Launch& launch) {
  const std::shared_ptr<Stream> stream = Streams::All().Find(launch);
  return stream == nullptr ? kUnknownStream : stream->Wait();
}

int Order(const Launch& launch, void* after) {
  const std::shared_ptr<Stream> later = Streams::All().Find({launch.device, after});
  if (later == nullptr) return kUnknownStream;
  const int status = OnQueue(
      launch, [&](const Launch& on) { return Emulation().order(on, later->launch().stream); });
  later->Wake();
  return status;
}

Backend MakeTable() {
  Backend table{};
  table.name = "sim";
  table.size = sizeof(Backend);
  table.call_sizes = kCallSizes;
  table.describe = Describe;
  table.use_allocator_at = [](const std::atomic<const Allocator*>& /*place*/) {};
  table.allocate = [](const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory) {
    const int status = OnQueue(
        launch, [&](const Launch& on) { return Emulation().allocate(on, kind, bytes, memory); });
    if (status == 0 && kind == MemoryKind::queued) ++g_queued;
    return status;
  };
  table.release = [](const Launch& launch, MemoryKind kind, void* memory) {
    const int status =
        OnQueue(launch, [&](const Launch& on) { return Emulation().release(on, kind, memory); });
    if (status == 0 && kind == MemoryKind::queued) --g_queued;
    return status;
  };
  table.release_unused = [](int device) {
    Streams::All().WaitForAll(device);
    return Emulation().release_unused(device);
  };
  table.copy = [](const Launch& launch, void* to, const void* from, std::int64_t bytes) {
    if (const int status = Wait(launch); status != 0) return status;
    return OnQueue(launch, [&](const Launch& on) { return Emulation().copy(on, to, from, bytes); });
  };
  table.clear = [](const Launch& launch, void* memory, std::int64_t bytes) {
    return OnQueue(launch, [&](const Launch& on) { return Emulation().clear(on, memory, bytes); });
  };
  table.open_stream = [](int device, void** stream) { return Streams::All().Open(device, stream); };
  table.close_stream = [](int device, void* stream) {
    return Streams::All().Close({device, stream});
  };
  table.order = Order;
  table.wait = Wait;
#define CPD_OP(name, Call) table.name = Operate<Call, &Backend::name>;
#include "cpd/backend/operations.def"
  table.blas = [](const Launch& launch, const BlasCall& call) {
    return Operate<GemmCall, &Backend::product>(
        launch, {call.product, AccumulatorPlanOf({}, call.product.depth), {}, {}});
  };
  return table;
}

}  // namespace
}  // namespace cpd::sim

/// Returns the table for AddBackend.
extern "C" __attribute__((visibility("default"))) const cpd::Backend* cpd_sim_backend() {
  static const cpd::Backend table = cpd::sim::MakeTable();
  return &table;
}

extern "C" __attribute__((visibility("default"))) cpd::testing::SimCounts cpd_sim_counts() {
  return {cpd::sim::g_unknown_streams, cpd::sim::g_queued};
}
