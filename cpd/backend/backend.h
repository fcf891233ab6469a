// SPDX-License-Identifier: Apache-2.0
//
// Backend: one table of the functions that the kernels of a kind of device offer. Callers have
// checked the arguments. Every function queues its work on a stream and returns a status (0:
// queued). Functions that return a value through a pointer to the host's memory wait for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "cpd/backend/message_calls.h"
#include "cpd/export.h"
#include "cpd/numeric/fast/fast_path.h"

namespace cpd {

struct Launch {
  int device = 0;
  void* stream = nullptr;
  FastPaths fast{};  ///< that kernels may take
};

/// The kinds of memory that Backend::allocate allocates.
enum class MemoryKind : std::uint8_t {
  pinned,  ///< on the host, accessible to kernels
  device,
  queued,  ///< on the device, allocated and released in stream order
};

/// A framework's own allocator, which gives stream-ordered memory in place of the library's pool.
struct Allocator {
  enum class Answer : std::uint8_t {
    given,
    not_mine,  ///< it does not serve this device and stream: the pool does
    none_left,
  };
  /// Sets *memory, for work on the stream, where it is given.
  Answer (*allocate)(int device, void* stream, std::int64_t bytes, void** memory);
  /// Releases its own memory in the order of work on that stream; false: it is another's.
  bool (*release)(void* memory);
};

/// The sizes of a launch and of the operations' calls, in the list's order: a library of another
/// build differs.
inline constexpr std::array kCallSizes = {
    std::uint32_t{sizeof(Launch)},
#define CPD_OP(name, Call) std::uint32_t{sizeof(Call)},
#include "cpd/backend/operations.def"
};

/// The status that means that no memory is left.
inline constexpr int kNoMemoryLeft = 2;

struct Backend {
  const char* name;    ///< of the kind of device: "cuda"
  std::uint32_t size;  ///< of this table
  std::remove_const_t<decltype(kCallSizes)> call_sizes;
  /// The meaning of an error and a remedy; of kNoMemoryLeft, also how many bytes this
  /// thread's last call of `allocate` lacked. The text is valid until the thread's next call.
  const char* (*describe)(int status);

  /// Has `allocate` ask the allocator at `place` for queued memory, whenever there is one.
  void (*use_allocator_at)(const std::atomic<const Allocator*>& place);
  /// If no memory is left, releases the pool's memory and tries once more (except while a graph is
  /// captured), before it returns kNoMemoryLeft.
  int (*allocate)(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory);
  int (*release)(const Launch& launch, MemoryKind kind, void* memory);
  /// Releases memory that is stored for later calls. Waits for all of the device's work.
  int (*release_unused)(int device);
  /// Copies between host and device, in either direction, and waits.
  int (*copy)(const Launch& launch, void* to, const void* from, std::int64_t bytes);
  /// Makes bytes in device memory zero.
  int (*clear)(const Launch& launch, void* memory, std::int64_t bytes);
  /// Creates a stream that does not wait for any other by itself.
  int (*open_stream)(int device, void** stream);
  int (*close_stream)(int device, void* stream);
  /// Makes work queued on `after` from now on wait for work already queued on the launch's stream.
  int (*order)(const Launch& launch, void* after);
  /// Waits for all work queued on the stream.
  int (*wait)(const Launch& launch);
  /// The path of products with this accumulator; `given`: whether the caller gives the random
  /// integers. Runs nothing.
  ProductPath (*product_path)(const AccumulatorPlan& plan, bool given);

#define CPD_OP(name, Call) int (*name)(const Launch& launch, const Call& call) = nullptr;
#include "cpd/backend/operations.def"
};

}  // namespace cpd

extern "C" CPD_API const cpd::Backend* cpd_backend();
