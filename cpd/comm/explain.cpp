// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/explain.h"

#include <algorithm>
#include <string>

#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/ops/call.h"

namespace cpd {
namespace {

/// Records which kernel one step of a reduction (the cast, or a sum) would run. The step processes
/// `size` values on the device of `like`, in blocks of `block` values.
struct Runs {
  TensorView like;
  std::int64_t size, block;

  void Note(const char* on_cpu, const char* elsewhere) const {
    if (Notes(like, elsewhere)) return;
    Explaining::Current()->Run(Kernels().name, on_cpu);
    parallel_for(size, block, kSerialRanksBelow, [](std::int64_t, std::int64_t) {});
  }
};

void NoteLevel(const char* function, const Level& level, const std::string& order,
               const Runs& runs) {
  const KernelTable& kernels = Kernels();
  const FastPath taken = kernels.fold_path(TermsPlanOf(level.accumulator, level.terms_in), false);
  Path path = PathOfTerms(level.accumulator, taken, kernels.lanes, false);
  if (!runs.like.on_host()) path.why = NameOf(runs.like) + "'s kernels: the values decide";
  path.why = order + ", " + std::to_string(level.terms) + " terms" +
             (path.why.empty() ? "" : "; " + path.why);
  NotePath(function, path);
  runs.Note("fold", "fold_ranks");
}

}  // namespace

void NoteReduction(const Reduce& spec, int world, const std::vector<std::int64_t>& sizes,
                   const TensorOptions& layers, const TensorView& like) {
  const Reduction reduction(spec, world, sizes, layers);
  if (sizes.empty()) return;
  const auto largest = std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
  const std::int64_t size = sizes[static_cast<std::size_t>(largest)];
  const Codec& wire = *reduction.wire(largest);
  const TensorView casts_on = reduction.rounds_on_devices() ? like : TensorView{};
  Path cast{wire.name(), ""};
  if (casts_on.device != like.device) cast.why = "the codec has no kernels on " + NameOf(like);
  if (spec.wire == nullptr) {
    cast = PathOf(spec.format, spec.rounding);
    if (spec.aps != Aps::off) {
      cast.why += std::string(cast.why.empty() ? "" : "; ") +
                  "scaled by a power of two (APS): the values decide";
    }
  }
  NotePath("encode", cast);
  Runs{casts_on, size, wire.block()}.Note(spec.wire == nullptr ? "cast" : "compressor",
                                          "cast_terms");
  const Runs sums{like, size, 4096};
  const std::string order = ToString(reduction.spec().order);
  if (reduction.grouped()) NoteLevel("sum_in_groups", reduction.Group(), order, sums);
  NoteLevel("sum", reduction.Across(), order, sums);
}

}  // namespace cpd
