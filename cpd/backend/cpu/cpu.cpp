// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/cpu.h"

#include <cstdlib>
#include <cstring>

#include "cpd/base/huge_pages.h"
#include "cpd/base/parallel.h"
#include "cpd/spec/error.h"

namespace cpd::cpu {
namespace {

constexpr std::int64_t kAlign = 64;  // a cache line
constexpr std::int64_t kSmall = std::int64_t{1} << 15;
constexpr std::int64_t kPieceBytes = 16 << 10;  // the least that a thread clears

const char* Describe(int /*status*/) { return "memory is missing"; }
void UseAllocatorAt(const std::atomic<const Allocator*>& /*place*/) {}
int Allocate(const Launch& /*launch*/, MemoryKind /*kind*/, std::int64_t bytes, void** memory) {
  const std::int64_t whole = (bytes + kAlign - 1) / kAlign * kAlign;
  const auto size = static_cast<std::size_t>(whole);
  *memory = bytes <= kSmall ? std::malloc(size) : std::aligned_alloc(kAlign, size);
  if (*memory == nullptr) throw NoMemory(static_cast<std::uint64_t>(whole), "a call");
  AdviseHugePages(*memory, static_cast<std::size_t>(whole));
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
  // Clears the memory on threads, because the system places a memory page near the thread that
  // first writes it. The same thread will later compute on the page.
  parallel_for(bytes, kPieceBytes, 4 * kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<char*>(memory) + begin, 0, static_cast<std::size_t>(end - begin));
  });
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
      .product_path = product_path,
#define CPD_OP(name, Call) .name = name,
#include "cpd/backend/operations.def"
  };
  return table;
}

}  // namespace cpd::cpu
