// SPDX-License-Identifier: Apache-2.0
//
// Stands in for libcpd_cuda's part in reductions. The kernels' bodies (kernels/cuda/reduce_tile.h)
// run on the CPU, block by block, thread by thread between barriers. What is queued on a stream
// runs as late as it may: when somebody waits for it. Device memory has addresses that a host
// cannot use.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cpd/backend/cuda.h"
#include "kernels/cuda/reduce_tile.h"
#include "kernels/cuda/short_fold.h"

namespace cpd::testing {

/// A block's threads, one after the other.
struct HostBlock {
  std::int64_t number = 0, count = 1;

  template <class Run>
  void each(Run run) const {
    for (int thread = 0; thread < cuda::kThreads; ++thread) run(thread);
  }
  static void add(unsigned long long* to, std::uint32_t value) { *to += value; }
  static void raise(std::uint32_t* to, std::uint32_t value) { *to = *to < value ? value : *to; }
  static void flip(std::uint32_t* to, std::uint32_t value) { *to ^= value; }
  template <class T>
  static void tally(T* to, T count) {
    *to += count;
  }
};

/// The modes that the stand-in's kernels have: each costs the compiler seconds.
template <class Run>
bool with_some_mode(Rounding mode, Run run) {
  switch (mode) {
    case Rounding::nearest_even:
      run.template operator()<Rounding::nearest_even>();
      return true;
    case Rounding::down:
      run.template operator()<Rounding::down>();
      return true;
    case Rounding::stochastic:
      run.template operator()<Rounding::stochastic>();
      return true;
    default:
      return false;
  }
}

class CudaStandIn {
 public:
  static const cuda::Api* api() {
    static const cuda::Api table = Make();
    return &table;
  }
  /// Pieces of memory that were taken and not given back.
  static std::atomic<std::int64_t>& allocated() {
    static std::atomic<std::int64_t> count = 0;
    return count;
  }
  /// Kernels that have run.
  static std::atomic<std::int64_t>& kernels() {
    static std::atomic<std::int64_t> count = 0;
    return count;
  }

 private:
  static constexpr int kBlocks = 3;  // each takes several tiles
  static constexpr int kUnknown = 1;
  static constexpr std::uintptr_t kDevice = std::uintptr_t{1} << 60;  // no address of a process

  /// What is queued, in order.
  class Stream {
   public:
    void Push(std::function<void()> work) {
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      queue_.push_back(std::move(work));
      ++pushed_;
    }
    [[nodiscard]] std::int64_t pushed() {
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      return pushed_;
    }
    /// The first `count` pieces of work that were ever pushed.
    void RunTo(std::int64_t count) {
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      while (taken_ < count) {
        const std::function<void()> work = std::move(queue_.front());
        queue_.pop_front();
        ++taken_;
        work();
      }
    }
    void Run() { RunTo(pushed()); }

   private:
    std::recursive_mutex mutex_;
    std::deque<std::function<void()>> queue_;
    std::int64_t pushed_ = 0, taken_ = 0;
  };
  using SharedStream = std::shared_ptr<Stream>;
  /// Streams are pointers to these.
  static SharedStream& Of(void* stream) { return *static_cast<SharedStream*>(stream); }

  template <class T>
  static T* OnHost(T* memory) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(memory) & ~kDevice);
  }

  /// A call with tables of its own, and memory where the bodies reach it.
  class Kernel {
   public:
    explicit Kernel(const cuda::ReduceCall& call)
        : call_(call),
          segments_(call.segments, call.segments + call.segment_count),
          from_(call.from, call.from + call.from_count) {
      for (cuda::ReduceSegment& segment : segments_) {
        segment.x = OnHost(segment.x);
        segment.out = OnHost(segment.out);
      }
      for (const std::uint8_t*& memory : from_) memory = OnHost(memory);
      call_.to = OnHost(call_.to);
    }
    /// Calls run(block, call) for each block.
    template <class Run>
    void Blocks(Run run) {
      ++kernels();
      call_.segments = segments_.data();
      call_.from = from_.data();
      for (std::int64_t number = 0; number < kBlocks; ++number) {
        run(HostBlock{number, kBlocks}, std::as_const(call_));
      }
    }

   private:
    cuda::ReduceCall call_;
    std::vector<cuda::ReduceSegment> segments_;
    std::vector<const std::uint8_t*> from_;
  };

  static void RunTask(const HostBlock& block, const cuda::ReduceCall& call,
                      cuda::ReduceTile& tile) {
    switch (call.task) {
      case cuda::ReduceTask::pack:
        with_some_mode(call.cast.mode,
                       [&]<Rounding mode>() { cuda::pack_block<mode>(block, call, tile); });
        break;
      case cuda::ReduceTask::fold:
        if (cuda::has_short_fold(call)) {
          const auto short_tile = std::make_unique<cuda::ShortFoldTile>();
          return cuda::with_short_fold(call, [&]<Split kind, bool kKahan>() {
            cuda::short_fold_block<kind, kKahan>(block, call, *short_tile);
          });
        }
        with_some_mode(call.across.terms.round.mode,
                       [&]<Rounding mode>() { cuda::fold_block<mode>(block, call, tile); });
        break;
      case cuda::ReduceTask::hop:
        with_some_mode(call.across.terms.round.mode,
                       [&]<Rounding mode>() { cuda::hop_block<mode>(block, call, tile); });
        break;
      case cuda::ReduceTask::transcode:
        cuda::transcode_block(block, call, tile);
        break;
      case cuda::ReduceTask::unpack:
        cuda::unpack_block(block, call);
        break;
    }
  }

  static bool Knows(Rounding mode) {
    return with_some_mode(mode, []<Rounding /*mode*/>() {});
  }

  static int Reduce(const cuda::Launch& launch, const cuda::ReduceCall& call) {
    if (!Knows(call.cast.mode) || !Knows(call.across.terms.round.mode)) return kUnknown;
    Of(launch.stream)->Push([kernel = Kernel(call)]() mutable {
      const auto tile = std::make_unique<cuda::ReduceTile>();
      kernel.Blocks([&](const HostBlock& block, const cuda::ReduceCall& on_host) {
        RunTask(block, on_host, *tile);
      });
    });
    return 0;
  }

  static int Count(const cuda::Launch& launch, const cuda::CountCall& count) {
    const auto& [call, casts, counts] = count;
    if (casts && !Knows(call.cast.mode)) return kUnknown;
    Of(launch.stream)->Run();
    Kernel(call).Blocks([&](const HostBlock& block, const cuda::ReduceCall& on_host) {
      if (!casts) {
        return cuda::count_block<Rounding::nearest_even, false>(block, on_host, counts);
      }
      with_some_mode(call.cast.mode, [&]<Rounding mode>() {
        cuda::count_block<mode, true>(block, on_host, counts);
      });
    });
    return 0;
  }

  static int Checksums(const cuda::Launch& launch, const cuda::ChecksumCall& call) {
    const auto [n, bytes, crcs] = call;
    Of(launch.stream)->Run();
    for (int i = 0; i < n; ++i) {
      const cuda::Bytes on_host{OnHost(bytes[i].data), bytes[i].count};
      std::uint32_t table[256];
      crcs[i] = 0;
      for (std::int64_t number = 0; number < kBlocks; ++number) {
        cuda::crc_block(HostBlock{number, kBlocks}, on_host, cuda::kCrcPowers, table, crcs + i);
      }
      crcs[i] = bytes[i].count == 0 ? 0 : ~crcs[i];
    }
    return 0;
  }

  static int Allocate(const cuda::Launch& /*launch*/, cuda::MemoryKind kind, std::int64_t bytes,
                      void** memory) {
    ++allocated();
    const std::int64_t whole = (bytes + 256) / 256 * 256;
    void* taken = std::aligned_alloc(256, static_cast<std::size_t>(whole));
    if (taken == nullptr) return kUnknown;
    std::memset(taken, 0xA5, static_cast<std::size_t>(whole));
    const bool pinned = kind == cuda::MemoryKind::pinned;
    *memory =
        reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(taken) | (pinned ? 0 : kDevice));
    return 0;
  }
  static int Release(const cuda::Launch& launch, cuda::MemoryKind kind, void* memory) {
    const auto free = [memory] {
      --allocated();
      std::free(OnHost(memory));
    };
    if (launch.stream == nullptr) {
      free();
      return 0;
    }
    Of(launch.stream)->Push(free);
    if (kind != cuda::MemoryKind::queued) Of(launch.stream)->Run();
    return 0;
  }
  static int Copy(const cuda::Launch& launch, void* to, const void* from, std::int64_t bytes) {
    if (launch.stream != nullptr) Of(launch.stream)->Run();
    if (bytes > 0) std::memcpy(OnHost(to), OnHost(from), static_cast<std::size_t>(bytes));
    return 0;
  }
  static int OpenStream(int /*device*/, void** stream) {
    *stream = new SharedStream(std::make_shared<Stream>());
    return 0;
  }
  /// Its work goes on, for those who wait for it.
  static int CloseStream(int /*device*/, void* stream) {
    delete static_cast<SharedStream*>(stream);
    return 0;
  }
  static int Order(const cuda::Launch& launch, void* after) {
    const SharedStream& before = Of(launch.stream);
    Of(after)->Push([before, count = before->pushed()] { before->RunTo(count); });
    return 0;
  }
  static int Wait(const cuda::Launch& launch) {
    Of(launch.stream)->Run();
    return 0;
  }

  static cuda::Api Make() {
    cuda::Api api{};
    api.describe = [](int /*status*/) { return "not in the stand-in"; };
    api.allocate = Allocate;
    api.release = Release;
    api.copy = Copy;
    api.open_stream = OpenStream;
    api.close_stream = CloseStream;
    api.order = Order;
    api.wait = Wait;
    api.release_unused = [](int) { return 0; };
    api.reduce = Reduce;
    api.count = Count;
    api.checksums = Checksums;
    return api;
  }
};

}  // namespace cpd::testing
