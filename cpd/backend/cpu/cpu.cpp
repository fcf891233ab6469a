// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/cpu.h"

#include <cstdlib>
#include <cstring>

#include "cpd/spec/error.h"

namespace cpd::cpu {
namespace {

constexpr std::int64_t kAlign = 64;  // a cache line

const char* Describe(int /*status*/) { return "memory is missing"; }
void UseAllocatorAt(const std::atomic<const Allocator*>& /*place*/) {}
int Allocate(const Launch& /*launch*/, MemoryKind /*kind*/, std::int64_t bytes, void** memory) {
  const std::int64_t whole = (bytes + kAlign - 1) / kAlign * kAlign;
  *memory = std::aligned_alloc(kAlign, static_cast<std::size_t>(whole));
  if (*memory == nullptr) throw NoMemory(static_cast<std::uint64_t>(whole), "a call");
  return 0;
}
int Release(const Launch& /*launch*/, MemoryKind /*kind*/, void* memory) {
  std::free(memory);
  return 0;
}
int ReleaseUnused(int /*device*/) { return 0; }
int Copy(const Launch& /*launch*/, void* to, const void* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
  return 0;
}
int Clear(const Launch& /*launch*/, void* memory, std::int64_t bytes) {
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
  return 0;
}
int OpenStream(int /*device*/, void** stream) {
  *stream = nullptr;
  return 0;
}
int CloseStream(int /*device*/, void* /*stream*/) { return 0; }
int Order(const Launch& /*launch*/, void* /*after*/) { return 0; }
int Wait(const Launch& /*launch*/) { return 0; }

}  // namespace

const Backend& Table() {
  static const Backend table = {
      .name = "cpu",
      .size = sizeof(Backend),
      .call_sizes = kCallSizes,
      .describe = Describe,
      .use_allocator_at = UseAllocatorAt,
      .allocate = Allocate,
      .release = Release,
      .release_unused = ReleaseUnused,
      .copy = Copy,
      .clear = Clear,
      .open_stream = OpenStream,
      .close_stream = CloseStream,
      .order = Order,
      .wait = Wait,
      .reduce = reduce,
      .count = count,
      .cast_terms = cast_terms,
      .fold_ranks = fold_ranks,
      .finish_sums = finish_sums,
      .checksums = checksums,
  };
  return table;
}

}  // namespace cpd::cpu
