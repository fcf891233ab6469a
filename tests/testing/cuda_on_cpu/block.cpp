// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/cuda_on_cpu/block.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

thread_local uint3 threadIdx;
thread_local uint3 blockIdx;
thread_local dim3 gridDim;
thread_local dim3 blockDim;

namespace cuda_on_cpu {

void fail(const std::string& why) {
  std::fprintf(stderr, "CUDA on a CPU: %s\n", why.c_str());
  std::abort();
}

std::string name_of(const void* code) {
  Dl_info info{};
  if (dladdr(code, &info) == 0) return "an unknown kernel";
  const auto offset = static_cast<const char*>(code) - static_cast<const char*>(info.dli_fbase);
  std::array<char, 1024> command{};
  std::snprintf(command.data(), command.size(), "addr2line -Cfe '%s' 0x%tx", info.dli_fname,
                offset);
  std::array<char, 1024> name{};
  FILE* answer = popen(command.data(), "r");
  if (answer == nullptr || std::fgets(name.data(), name.size(), answer) == nullptr)
    return command.data();
  return name.data();
}

namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr std::size_t kStackBytes = std::size_t{256} << 10;

/// A context of execution and its stack.
struct Fiber {
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  ucontext_t context{};  ///< where the fiber begins; under ASan, where it goes on
  jmp_buf place{};       ///< where the fiber goes on
  bool has_begun = true;
  void* stack = nullptr;  ///< null: the host thread's own
  std::size_t stack_bytes = 0;
};

/// A fiber that allocates a stack of its own.
struct OwnFiber : Fiber {
  explicit OwnFiber(void (*run)()) {
    stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) fail("no memory for a thread's stack");
    stack_bytes = kStackBytes;
    has_begun = false;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStackBytes;
    makecontext(&context, run, 0);
  }
  ~OwnFiber() { munmap(stack, kStackBytes); }
};

/// Suspends the fiber `from` and continues `to`. Returns when another fiber continues `from`. ASan
/// requires swapcontext; otherwise jumps are used, because swapcontext takes two system calls.
void switch_to(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  void* kept = nullptr;
  __sanitizer_start_switch_fiber(&kept, to.stack, to.stack_bytes);
  swapcontext(&from.context, &to.context);
  __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#else
  if (_setjmp(from.place) != 0) return;
  if (to.has_begun) _longjmp(to.place, 1);
  to.has_begun = true;
  setcontext(&to.context);
#endif
}

class Block;
thread_local Block* t_block = nullptr;
thread_local Fiber t_host;  ///< who runs blocks

/// Runs first in a new fiber. Tells the sanitizer which stack the fiber was entered from.
void begin_fiber() {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &t_host.stack_bytes);
  t_host.stack = const_cast<void*>(stack);
#endif
}

class Block {
 public:
  Block(const void* kernel, ThreadOrder order, const std::function<void()>& thread)
      : kernel_(kernel),
        thread_(thread),
        states_(blockDim.x, State::waits),
        fibers_(blockDim.x, nullptr),
        order_(blockDim.x),
        warps_((blockDim.x + kWarp - 1) / kWarp) {
    std::iota(order_.begin(), order_.end(), 0U);
    if (order == ThreadOrder::descending) std::ranges::reverse(order_);
    if (order == ThreadOrder::shuffled)
      std::ranges::shuffle(order_, std::minstd_rand(blockIdx.x + 1));
  }

  [[nodiscard]] const void* kernel() const { return kernel_; }

  void Run() {
    t_block = this;
    while (ended_ < states_.size()) {
      if (!GoOn()) Release();
    }
    t_block = nullptr;
  }

  void Barrier() {
    ++at_barrier_;
    Wait(State::waits);
  }
  /// Waits for all threads, and returns whether every thread passed true. Two variables hold the
  /// results of successive barriers in turn: a thread may reach the next barrier before the last
  /// thread has read this barrier's result.
  bool BarrierAnd(bool value) {
    const std::size_t turn = turn_;
    if (at_barrier_ == 0) all_[turn % 2] = true;
    all_[turn % 2] = all_[turn % 2] && value;
    Barrier();
    turn_ = turn + 1;
    return all_[turn % 2];
  }

  unsigned Collect(Collective operation, unsigned lanes, unsigned value) {
    const LaneValues& values = Gather(operation, lanes, value);
    return std::accumulate(values.begin() + 1, values.end(), values[0],
                           [&](unsigned a, unsigned b) { return Combined(operation, a, b); });
  }
  unsigned Shuffle(unsigned lanes, unsigned value, unsigned from) {
    return Gather(Collective::shuffle, lanes, value)[from % kWarp];
  }

 private:
  using LaneValues = std::array<unsigned, kWarp>;

  const LaneValues& Gather(Collective operation, unsigned lanes, unsigned value) {
    if (lanes != kAllLanes) Fail("a collective of a part of a warp");
    Warp& warp = warps_[threadIdx.x / kWarp];
    if (warp.arrived > 0 && warp.operation != operation) {
      Fail("lanes of a warp are at different collectives");
    }
    warp.operation = operation;
    // Two arrays hold the values of successive collectives in turn: a lane may reach the next
    // collective before the last lane has read the values of this collective.
    LaneValues& values = warp.values[warp.turn % 2];
    values[threadIdx.x % kWarp] = value;
    if (++warp.arrived < kWarp) {
      Wait(State::waits);
    } else {
      warp.arrived = 0;
      ++warp.turn;
      const unsigned first = threadIdx.x / kWarp * kWarp;
      std::fill_n(states_.begin() + first, kWarp, State::ready);
      states_[threadIdx.x] = State::runs;
      met_.push_back(first);
    }
    return values;
  }

  enum class State : std::uint8_t { waits, ready, runs, ended };

  struct Warp {
    Collective operation{};
    unsigned arrived = 0;
    unsigned turn = 0;
    std::array<LaneValues, 2> values{};
  };

  [[noreturn]] void Fail(const std::string& why) const {
    fail_in(kernel_, why + ", thread " + std::to_string(threadIdx.x));
  }

  static unsigned Combined(Collective operation, unsigned a, unsigned b) {
    switch (operation) {
      case Collective::max:
        return std::max(a, b);
      case Collective::min:
        return std::min(a, b);
      case Collective::bit_or:
        return a | b;
      case Collective::bit_xor:
        return a ^ b;
      case Collective::add:
        return a + b;
      case Collective::shuffle:
        break;
    }
    return 0;
  }

  /// Continues each thread that may run, or begins further threads. Returns false if all threads
  /// wait. A warp whose lanes have met at a collective continues at once, so it runs as far ahead
  /// of other warps as the kernel permits.
  bool GoOn() {
    bool any = GoOnWithWarps();
    for (const unsigned t : order_) {
      if (states_[t] != State::ready) continue;
      any = true;
      GoOn(t);
      GoOnWithWarps();
    }
    if (any || begun_ == order_.size()) return any;
    Enter(Idle());
    return true;
  }

  bool GoOnWithWarps() {
    const bool any = !met_.empty();
    while (!met_.empty()) {
      const unsigned first = met_.back();
      met_.pop_back();
      for (unsigned lane = 0; lane < kWarp; ++lane) {
        if (states_[first + lane] == State::ready) GoOn(first + lane);
      }
    }
    return any;
  }

  void GoOn(unsigned thread) {
    Become(thread);
    Enter(fibers_[thread]);
  }

  /// Releases the barrier if all threads have reached it. Otherwise ends the process.
  void Release() {
    const std::string counts =
        std::to_string(at_barrier_) + " of " + std::to_string(states_.size()) + " threads";
    if (at_barrier_ + ended_ != states_.size()) {
      Fail(counts + " are at a barrier, others wait for lanes of their warp");
    }
    if (ended_ != 0) Fail(counts + " are at a barrier, the others have ended");
    at_barrier_ = 0;
    std::ranges::fill(states_, State::ready);
  }

  void Become(unsigned thread) {
    threadIdx.x = thread;
    states_[thread] = State::runs;
  }

  void Enter(Fiber* fiber) {
    running_ = fiber;
    switch_to(t_host, *fiber);
  }

  void Wait(State state) {
    const unsigned thread = threadIdx.x;
    states_[thread] = state;
    fibers_[thread] = running_;
    switch_to(*running_, t_host);
  }

  /// The body of a fiber. The fiber runs the block's threads one after the other, as long as none
  /// of them waits. A thread that has waited ends on this fiber, which then begins further threads.
  static void RunThreads() {
    begin_fiber();
    for (;;) {
      Block& block = *t_block;
      while (block.begun_ < block.order_.size()) {
        block.Become(block.order_[block.begun_++]);
        block.thread_();
        block.states_[threadIdx.x] = State::ended;
        ++block.ended_;
      }
      Fiber* self = block.running_;
      Pool().push_back(self);
      switch_to(*self, t_host);
    }
  }

  /// Returns the list of the fibers that have no unfinished thread. New threads run on these first.
  static std::vector<Fiber*>& Pool() {
    static thread_local std::vector<Fiber*> pool;
    return pool;
  }

  static Fiber* Idle() {
    static thread_local std::vector<std::unique_ptr<OwnFiber>> all;
    if (Pool().empty()) {
      all.push_back(std::make_unique<OwnFiber>(RunThreads));
      return all.back().get();
    }
    Fiber* fiber = Pool().back();
    Pool().pop_back();
    return fiber;
  }

  const void* kernel_;
  const std::function<void()>& thread_;
  std::vector<State> states_;
  std::vector<Fiber*> fibers_;   ///< of threads that wait
  std::vector<unsigned> order_;  ///< threads, as they begin and go on
  std::vector<Warp> warps_;
  std::vector<unsigned> met_;  ///< first lanes of warps whose lanes have met since
  Fiber* running_ = nullptr;
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
  std::size_t at_barrier_ = 0;
  std::size_t turn_ = 0;  ///< of BarrierAnd
  std::array<bool, 2> all_{};
};

}  // namespace

void fail_in(const void* kernel, const std::string& why) {
  fail(why + ", block " + std::to_string(blockIdx.x) + " of " + name_of(kernel));
}

const void* running_kernel() { return t_block == nullptr ? nullptr : t_block->kernel(); }

std::uint64_t half_fmas = 0;

void barrier() { t_block->Barrier(); }

bool barrier_and(bool value) { return t_block->BarrierAnd(value); }

unsigned collect(Collective operation, unsigned lanes, unsigned value) {
  return t_block->Collect(operation, lanes, value);
}

unsigned shuffle(unsigned lanes, unsigned value, unsigned from) {
  return t_block->Shuffle(lanes, value, from);
}

void run_block(const void* kernel, ThreadOrder order, const std::function<void()>& thread) {
  Block(kernel, order, thread).Run();
}

}  // namespace cuda_on_cpu
