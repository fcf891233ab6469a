// SPDX-License-Identifier: Apache-2.0
//
// Operations on packed codes: casts to codes, and decoding.
#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"

namespace cpd::cpu {
namespace {

template <class T>
void Encode(const EncodeCall& call) {
  if (Explains()) NoteKernel("encode");
  parallel_for(call.n, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<T> reader(call.x);
    Reader<std::uint32_t> integers(call.random);
    const bool direct = reader.is_direct() && integers.is_direct();
    unsigned long long nan = kNoFault;
    ForRanges(begin, end, direct ? end - begin : kStage, [&](std::int64_t i, std::int64_t n) {
      if (nan != kNoFault) return;
      Kernels().encode({.n = n,
                        .first = i,
                        .x = Contiguous(reader.Read(i, n)),
                        .random = Contiguous(integers.Read(i, n)),
                        .plan = call.plan,
                        .streaming = direct && call.n >= kStreamingFrom,
                        .packed = call.packed + i * call.plan->bits / 8,
                        .first_nan = call.first_nan == nullptr ? nullptr : &nan});
    });
    Lower(call.first_nan, nan);
  });
}

}  // namespace

int encode(const Launch& /*launch*/, const EncodeCall& call) {
  call.x.dtype == DType::f64 ? Encode<double>(call) : Encode<float>(call);
  return 0;
}

int decode(const Launch& /*launch*/, const DecodeCall& call) {
  if (Explains()) NoteKernel("decode");
  parallel_for(call.n, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Writer<float> writer(call.out);
    const bool direct = writer.is_direct();
    ForRanges(begin, end, direct ? end - begin : kStage, [&](std::int64_t i, std::int64_t n) {
      Kernels().decode({.n = n,
                        .plan = call.plan,
                        .packed = call.packed + i * call.plan->bits / 8,
                        .out = Contiguous(writer.Target(i, n)),
                        .streaming = direct && call.n >= kStreamingFrom});
      writer.Flush(i, n);
    });
  });
  return 0;
}

}  // namespace cpd::cpu
