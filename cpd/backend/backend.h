// SPDX-License-Identifier: Apache-2.0
//
// Backend: the table of functions that the kernels of a kind of device offer. Callers have checked
// the arguments. Every function queues its work on a stream and returns a status (0: queued). A
// function that returns a value through a pointer to host memory waits for that value.
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
  FastPaths fast{};  ///< the fast paths that kernels may use
};

/// The kinds of memory that Backend::allocate allocates.
enum class MemoryKind : std::uint8_t {
  pinned,  ///< on the host, accessible to kernels
  device,
  queued,  ///< on the device, allocated and released in stream order
};

/// A framework's allocator of stream-ordered memory. It replaces the library's own pool.
struct Allocator {
  enum class Answer : std::uint8_t {
    given,
    not_mine,  ///< it does not serve this device and stream; the pool does
    none_left,
  };
  /// Allocates memory for work on the stream. On success, sets *memory to its address and returns
  /// Answer::given. Otherwise returns another Answer, which names the reason, and leaves *memory
  /// unchanged.
  Answer (*allocate)(int device, void* stream, std::int64_t bytes, void** memory);
  /// Releases memory of this allocator in the order of work on the memory's stream. Returns false
  /// for memory that another allocator gave.
  bool (*release)(void* memory);
};

/// The sizes in bytes of Launch and of each operation's call struct, in the order of
/// operations.def. A library of another build has other sizes, and the registry refuses such a
/// library.
inline constexpr std::array kCallSizes = {
    std::uint32_t{sizeof(Launch)},
#define CPD_OP(name, Call) std::uint32_t{sizeof(Call)},
#include "cpd/backend/operations.def"
};

/// The status that reports that no memory is left.
inline constexpr int kNoMemoryLeft = 2;

struct Backend {
  const char* name;    ///< name of the kind of device, such as "cuda"
  std::uint32_t size;  ///< size of this table in bytes
  std::remove_const_t<decltype(kCallSizes)> call_sizes;
  /// Returns a text that describes an error and a remedy. For kNoMemoryLeft the text also says how
  /// many bytes this thread's last `allocate` lacked. The text is valid until the thread's next
  /// call.
  const char* (*describe)(int status);

  /// Sets the place where `allocate` looks for a framework's allocator. `place` holds a pointer to
  /// the allocator, or null. While the pointer is not null, `allocate` gets queued memory from that
  /// allocator.
  void (*use_allocator_at)(const std::atomic<const Allocator*>& place);
  /// Allocates memory. If none is left, releases the pool's memory and tries once more (except
  /// while a CUDA graph is captured), before returning kNoMemoryLeft.
  int (*allocate)(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory);
  int (*release)(const Launch& launch, MemoryKind kind, void* memory);
  /// Releases memory that is stored for later calls. Waits for all of the device's work.
  int (*release_unused)(int device);
  /// Copies between host and device, in either direction, and waits until the copy is done.
  int (*copy)(const Launch& launch, void* to, const void* from, std::int64_t bytes);
  /// Sets bytes in device memory to zero.
  int (*clear)(const Launch& launch, void* memory, std::int64_t bytes);
  /// Creates a stream. The stream waits for another stream only after a call of `order`.
  int (*open_stream)(int device, void** stream);
  int (*close_stream)(int device, void* stream);
  /// Makes work queued on the stream `after` from now on wait for the work already queued on the
  /// stream of `launch`.
  int (*order)(const Launch& launch, void* after);
  /// Waits for all work queued on the stream of `launch`.
  int (*wait)(const Launch& launch);
  /// Returns the code path (the method of computation) that the device uses for matrix products
  /// with this accumulator. Computes no product. `given`: true if the caller passes the random
  /// integers.
  ProductPath (*product_path)(const AccumulatorPlan& plan, bool given);

#define CPD_OP(name, Call) int (*name)(const Launch& launch, const Call& call) = nullptr;
#include "cpd/backend/operations.def"
};

}  // namespace cpd

extern "C" CPD_API const cpd::Backend* cpd_backend();
