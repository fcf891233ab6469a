// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/message_ops.h"

#include <memory>
#include <utility>

#include "cpd/base/plans.h"
#include "cpd/compress/packed.h"
#include "cpd/numeric/draws/streams.h"

namespace cpd {
namespace {

/// The codecs of owners' sums; with `in_fp32` all have codes for NaN.
std::vector<SharedCodec> ResultCodecs(const Reduction& reduction, bool in_fp32) {
  std::vector<SharedCodec> codecs(reduction.results().begin(), reduction.results().end());
  for (std::size_t l = 0; l < codecs.size() && in_fp32; ++l) {
    if (codecs[l] == nullptr || codecs[l]->has_nan()) continue;
    codecs[l] = reduction.wires()[l]->ForResults(kFp32, reduction.world());
  }
  return codecs;
}

}  // namespace

MessageOps::MessageOps(const Reduction& reduction, int rank, Layers layers, bool in_fp32,
                       std::function<void()> progress)
    : reduction_(reduction),
      rank_(rank),
      layers_(std::move(layers)),
      in_fp32_(in_fp32),
      progress_(std::move(progress)),
      call_(MakeCall()) {
  const Reduce& spec = reduction.spec();
  const SharedCodec packed = std::make_shared<Packed>(kFp32);
  const auto sums = [&](const Format& given) -> SharedCodec {
    const Format format = MessageFormat(given);
    return spec.wire != nullptr ? spec.wire->ForSums(format) : std::make_shared<Packed>(format);
  };
  codecs_.assign(3, Codecs(reduction.wires()));
  const auto of = [&](Content content) -> Codecs& {
    return codecs_[static_cast<std::size_t>(content)];
  };
  of(Content::contributions).Add(as_values() ? std::span(&packed, 1) : reduction.wires());
  const Level across = reduction.Across(0);
  for (int q = 0; q < across.planes(); ++q) {
    const SharedCodec plane = sums(across.plane_format(q));
    of(Content::running_sums).Add({&plane, 1});
  }
  of(Content::results).Add(ResultCodecs(reduction, in_fp32_), sums(spec.result));
}

MessageOps::~MessageOps() = default;

ReduceCall MessageOps::MakeCall() const {
  const Reduce& spec = reduction().spec();
  const Level across = reduction().Across(0);
  ReduceCall call;
  call.cast = PlanOf(spec.format, spec.rounding, {.seed = reduction().seed()});
  const auto codes = [&](Codes kind, const Format& format) {
    call.codes[static_cast<std::size_t>(kind)] = PlanOf(MessageFormat(format));
  };
  codes(Codes::wire, coded() ? kFp32 : spec.format);
  codes(Codes::result, spec.result);
  codes(Codes::plane0, across.plane_format(0));
  codes(Codes::plane1, across.plane_format(1));
  codes(Codes::values, kFp32);
  call.across = SumPlanOf(across);
  call.group = SumPlanOf(reduction().Group(0, 0));
  call.rounds = reduction().rounds();
  call.world = reduction().world();
  call.group_size = spec.group_size;
  call.cast_stream = StreamOf(Purpose::wire, reduction().step(), 0, rank());
  call.sum_stream = StreamOf(Purpose::sum, reduction().step(), 0, 0);
  call.result_stream = StreamOf(Purpose::result, reduction().step(), 0, 0);
  return call;
}

SumPlan SumPlanOf(const Level& level) {
  const Accumulator& accumulator = level.accumulator;
  return {fold_order(accumulator), TermsPlanOf(accumulator, level.terms_in, level.sum_key),
          SumsPlanOf(accumulator, level.sum_key), level.result != accumulator.format,
          PlanOf(level.result, level.rounding, level.result_key)};
}

}  // namespace cpd
