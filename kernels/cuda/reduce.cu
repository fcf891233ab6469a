// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/reduce_tile.cuh"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

template <Rounding mode>
__global__ void __launch_bounds__(kThreads) pack(const __grid_constant__ ReduceCall call) {
  __shared__ ReduceTile tile;
  const ThreadBlock block;
  code_block(block, call, tile, [&](const ReduceSegment& segment, std::int64_t at) {
    return contribution_code<mode>(call, segment, at);
  });
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads) fold(const __grid_constant__ ReduceCall call) {
  __shared__ ReduceTile tile;
  const ThreadBlock block;
  const RoundPlan& plan = call.codes[static_cast<int>(call.to_codes)];
  code_block(block, call, tile, [&](const ReduceSegment& segment, std::int64_t at) {
    return code_of(sum_of<mode>(call, segment, at), plan);
  });
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads) hop(const __grid_constant__ ReduceCall call) {
  __shared__ ReduceTile tile;
  const ThreadBlock block;
  const bool ends = call.k + 1 == call.rounds.units;
  for_tiles(block, call, [&](const ReduceSegment& segment, std::int64_t begin, int count) {
    block.each([&](int thread) {
      CPD_ROLLED for (int i = thread; i < count; i += kThreads) {
        hop_over<mode>(call, segment, begin + i, tile.codes[0][i], tile.codes[1][i]);
      }
    });
    store_tile(block, call, segment, begin, count, ends ? Codes::result : Codes::plane0,
               tile.codes[0], tile.bytes);
    if (ends || planes_of_sum(call.across.order.scheme, call.rounds.units) == 1) return;
    store_tile(block, call, segment, begin, count, Codes::plane1, tile.codes[1], tile.bytes);
  });
}
__global__ void __launch_bounds__(kThreads) transcode(const __grid_constant__ ReduceCall call) {
  __shared__ ReduceTile tile;
  const ThreadBlock block;
  const RoundPlan& plan = call.codes[static_cast<int>(call.to_codes)];
  code_block(block, call, tile, [&](const ReduceSegment& segment, std::int64_t at) {
    return code_of(load_value(call, segment, 0, call.from_codes, at), plan);
  });
}
__global__ void __launch_bounds__(kThreads) unpack(const __grid_constant__ ReduceCall call) {
  const ThreadBlock block;
  for_tiles(block, call, [&](const ReduceSegment& segment, std::int64_t begin, int count) {
    block.each([&](int thread) {
      CPD_ROLLED for (int i = thread; i < count; i += kThreads) {
        const float value = load_value(call, segment, 0, call.from_codes, begin + i);
        segment.out[begin + i] =
            call.unscales ? unscaled(value * segment.scale, segment.shift, call.divisor) : value;
      }
    });
  });
}
/// Counts the values of each segment (a range of a layer's values) that are not finite, and finds
/// the largest finite magnitude. With kCasts, also counts the values that the cast rounds to zero
/// and all values that are zero after the cast.
template <Rounding mode, bool kCasts>
__global__ void __launch_bounds__(kThreads)
    count_values(const __grid_constant__ ReduceCall call, SegmentCounts* counts) {
  const ThreadBlock block;
  for_tiles(block, call, [&](const ReduceSegment& segment, std::int64_t begin, int count) {
    SegmentCounts& to = counts[&segment - call.segments];
    block.each([&](int thread) {
      std::uint32_t largest = 0;
      std::uint32_t non_finite = 0;
      std::uint32_t underflowed = 0;
      std::uint32_t zeros = 0;
      CPD_ROLLED for (int i = thread; i < count; i += kThreads) {
        const float x = segment.x[begin + i];
        const std::uint32_t size = bits_as<std::uint32_t>(x) & Pattern<float>::magnitude;
        const bool finite = size < Pattern<float>::infinity;
        if (!finite) ++non_finite;
        if (finite && size > largest) largest = size;
        if constexpr (kCasts) {
          if (contribution<mode>(call, segment, begin + i) == 0) {
            ++zeros;
            if (x != 0) ++underflowed;
          }
        }
      }
      block.raise(&to.largest, largest);
      block.add(&to.non_finite, non_finite);
      if constexpr (kCasts) {
        block.add(&to.underflowed, underflowed);
        block.add(&to.zeros, zeros);
      }
    });
  });
}
/// Combines the CRC remainders of this thread block's ranges into `remainder`, by exclusive or.
/// When all thread blocks have finished, `remainder` is the CRC-32C remainder of `bytes` that
/// starts from ~0. The shared memory `table` has 256 words.
__global__ void __launch_bounds__(kThreads)
    find_remainder(ByteRange bytes, const __grid_constant__ CrcPowers powers,
                   std::uint32_t* remainder) {
  __shared__ std::uint32_t table[256];
  const ThreadBlock block;
  block.each([&](int thread) {
    for (int b = thread; b < 256; b += kThreads) table[b] = crc_of_byte(static_cast<unsigned>(b));
  });
  block.each([&](int thread) {
    std::uint32_t joined = 0;
    const std::int64_t step = block.count * kThreads;
    const std::int64_t pieces = (bytes.count + kCrcPiece - 1) / kCrcPiece;
    for (std::int64_t p = block.number * kThreads + thread; p < pieces; p += step) {
      const std::int64_t end =
          (p + 1) * kCrcPiece < bytes.count ? (p + 1) * kCrcPiece : bytes.count;
      std::uint32_t crc = p == 0 ? ~0U : 0U;
      for (std::int64_t i = p * kCrcPiece; i < end; ++i) {
        crc = (crc >> 8) ^ table[(crc ^ bytes.data[i]) & 0xFF];
      }
      joined ^= after_zeros(crc, bytes.count - end, powers);
    }
    block.flip(remainder, joined);
  });
}

/// A copy of a call for kernels: its segments and its pointers to messages (call.from) are copied
/// to device memory, into one allocation.
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

int start_task(const Launch& launch, const ReduceCall& call) {
  if (const auto status = FastKernel<reduce>::Start(launch, call)) return *status;
  const auto start = [&](auto kernel) {
    start_kernel(kernel, blocks_for(call.tiles), kThreads, static_cast<cudaStream_t>(launch.stream),
                 call);
  };
  switch (call.task) {
    case ReduceTask::pack:
      with_mode(call.cast.mode, [&]<Rounding mode>() { start(pack<mode>); });
      break;
    case ReduceTask::fold:
      with_mode(call.across.terms.round.mode, [&]<Rounding mode>() { start(fold<mode>); });
      break;
    case ReduceTask::hop:
      with_mode(call.across.terms.round.mode, [&]<Rounding mode>() { start(hop<mode>); });
      break;
    case ReduceTask::transcode:
      start(transcode);
      break;
    case ReduceTask::unpack:
      start(unpack);
      break;
  }
  return cudaGetLastError();
}

}  // namespace

int reduce(const Launch& launch, const ReduceCall& given) {
  if (given.tiles == 0) return cudaSuccess;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const DeviceCall device(launch, given);
  if (device.status() != cudaSuccess) return device.status();
  return start_task(launch, device.call());
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
