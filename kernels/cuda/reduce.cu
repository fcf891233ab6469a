// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/reduce_tile.h"
#include "kernels/cuda/short_fold.h"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

template <Rounding mode>
__global__ void __launch_bounds__(kThreads) pack(const __grid_constant__ ReduceCall call) {
  __shared__ ReduceTile tile;
  pack_block<mode>(ThreadBlock(), call, tile);
}
template <Split kind, bool kKahan>
__global__ void __launch_bounds__(kThreads, 4) short_fold(const __grid_constant__ ReduceCall call) {
  __shared__ ShortFoldTile tile;
  short_fold_block<kind, kKahan>(ThreadBlock(), call, tile);
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads) fold(const __grid_constant__ ReduceCall call) {
  __shared__ ReduceTile tile;
  fold_block<mode>(ThreadBlock(), call, tile);
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads) hop(const __grid_constant__ ReduceCall call) {
  __shared__ ReduceTile tile;
  hop_block<mode>(ThreadBlock(), call, tile);
}
__global__ void __launch_bounds__(kThreads) transcode(const __grid_constant__ ReduceCall call) {
  __shared__ ReduceTile tile;
  transcode_block(ThreadBlock(), call, tile);
}
__global__ void __launch_bounds__(kThreads) unpack(const __grid_constant__ ReduceCall call) {
  unpack_block(ThreadBlock(), call);
}
template <Rounding mode, bool kCasts>
__global__ void __launch_bounds__(kThreads)
    count_values(const __grid_constant__ ReduceCall call, SegmentCounts* counts) {
  count_block<mode, kCasts>(ThreadBlock(), call, counts);
}
__global__ void __launch_bounds__(kThreads)
    find_remainder(Bytes bytes, const __grid_constant__ CrcPowers powers,
                   std::uint32_t* remainder) {
  __shared__ std::uint32_t table[256];
  crc_block(ThreadBlock(), bytes, powers, table, remainder);
}

/// A call with its tables copied to the device, in one allocation.
class DeviceCall {
 public:
  DeviceCall(const Launch& launch, const ReduceCall& call)
      : call_(call), tables_(launch, bytes_of(call)) {
    const std::size_t segments = sizeof(ReduceSegment) * call.segment_count;
    std::vector<std::uint8_t> tables(static_cast<std::size_t>(bytes_of(call)));
    std::copy_n(reinterpret_cast<const std::uint8_t*>(call.segments), segments, tables.data());
    std::copy_n(reinterpret_cast<const std::uint8_t*>(call.from), tables.size() - segments,
                tables.data() + segments);
    tables_.fill(tables.data());
    call_.segments = reinterpret_cast<const ReduceSegment*>(tables_.data());
    call_.from = reinterpret_cast<const std::uint8_t* const*>(tables_.data() + segments);
  }
  [[nodiscard]] cudaError_t status() const { return tables_.status(); }
  [[nodiscard]] const ReduceCall& call() const { return call_; }

 private:
  static std::int64_t bytes_of(const ReduceCall& call) {
    return static_cast<std::int64_t>(sizeof(ReduceSegment) * call.segment_count +
                                     sizeof(const std::uint8_t*) * call.from_count);
  }

  ReduceCall call_;
  Array<std::uint8_t> tables_;
};

void launch_task(unsigned blocks, cudaStream_t stream, const ReduceCall& call) {
  switch (call.task) {
    case ReduceTask::pack:
      return with_mode(call.cast.mode, [&]<Rounding mode>() {
        start_kernel(pack<mode>, blocks, kThreads, stream, call);
      });
    case ReduceTask::fold:
      if (has_short_fold(call)) {
        return with_short_fold(call, [&]<Split kind, bool kKahan>() {
          start_kernel(short_fold<kind, kKahan>, blocks, kThreads, stream, call);
        });
      }
      return with_mode(call.across.terms.round.mode, [&]<Rounding mode>() {
        start_kernel(fold<mode>, blocks, kThreads, stream, call);
      });
    case ReduceTask::hop:
      return with_mode(call.across.terms.round.mode, [&]<Rounding mode>() {
        start_kernel(hop<mode>, blocks, kThreads, stream, call);
      });
    case ReduceTask::transcode:
      return start_kernel(transcode, blocks, kThreads, stream, call);
    case ReduceTask::unpack:
      return start_kernel(unpack, blocks, kThreads, stream, call);
  }
}

}  // namespace

int reduce(const Launch& launch, const ReduceCall& given) {
  if (given.tiles == 0) return cudaSuccess;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const DeviceCall device(launch, given);
  if (device.status() != cudaSuccess) return device.status();
  launch_task(blocks_for(given.tiles), static_cast<cudaStream_t>(launch.stream), device.call());
  return cudaGetLastError();
}

int count(const Launch& launch, const CountCall& count) {
  const ReduceCall& given = count.reduce;
  if (given.segment_count == 0) return cudaSuccess;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const DeviceCall device(launch, given);
  if (device.status() != cudaSuccess) return device.status();
  Array<SegmentCounts> found(launch, given.segment_count);
  found.clear();
  if (found.status() != cudaSuccess) return found.status();
  const unsigned blocks = blocks_for(given.tiles);
  if (blocks > 0 && count.casts) {
    with_mode(given.cast.mode, [&]<Rounding mode>() {
      start_kernel(count_values<mode, true>, blocks, kThreads, stream, device.call(), found.data());
    });
  } else if (blocks > 0) {
    start_kernel(count_values<Rounding::nearest_even, false>, blocks, kThreads, stream,
                 device.call(), found.data());
  }
  const cudaError_t queued = cudaGetLastError();
  return queued == cudaSuccess ? found.read(count.counts) : queued;
}

int checksums(const Launch& launch, const ChecksumCall& call) {
  const auto [n, bytes, crcs] = call;
  if (n == 0) return cudaSuccess;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  Array<std::uint32_t> remainders(launch, n);
  remainders.clear();
  if (remainders.status() != cudaSuccess) return remainders.status();
  for (int i = 0; i < n; ++i) {
    const std::int64_t pieces = (bytes[i].count + kCrcPiece - 1) / kCrcPiece;
    const unsigned blocks = blocks_for((pieces + kThreads - 1) / kThreads);
    if (blocks == 0) continue;
    start_kernel(find_remainder, blocks, kThreads, stream, bytes[i], kCrcPowers,
                 remainders.data() + i);
  }
  const cudaError_t queued = cudaGetLastError();
  if (queued != cudaSuccess) return queued;
  const cudaError_t status = remainders.read(crcs);
  for (int i = 0; i < n; ++i) crcs[i] = bytes[i].count == 0 ? 0 : ~crcs[i];
  return status;
}

}  // namespace cpd::cuda
