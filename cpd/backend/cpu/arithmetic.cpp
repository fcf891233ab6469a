// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations.
#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"

namespace cpd::cpu {
namespace {

template <class T>
void Operate(const ArithmeticCall& call) {
  if (Explains()) NoteKernel("arithmetic");
  parallel_for(call.n, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<T> x(call.x), y(call.y), z(call.z);
    Reader<std::uint32_t> integers(call.random);
    Writer<T> writer(call.out);
    ForRanges(begin, end, kStage, [&](std::int64_t i, std::int64_t n) {
      Kernels().arithmetic({.op = call.op,
                            .n = n,
                            .first = i,
                            .x = Contiguous(x.Read(i, n)),
                            .y = Contiguous(y.Read(i, n)),
                            .z = Contiguous(z.Read(i, n)),
                            .random = Contiguous(integers.Read(i, n)),
                            .out = Contiguous(writer.Target(i, n)),
                            .plan = call.plan});
      writer.Flush(i, n);
    });
  });
}

}  // namespace

int arithmetic(const Launch& /*launch*/, const ArithmeticCall& call) {
  const bool wide =
      call.x.dtype == DType::f64 || call.y.dtype == DType::f64 || call.z.dtype == DType::f64;
  wide ? Operate<double>(call) : Operate<float>(call);
  return 0;
}

}  // namespace cpd::cpu
