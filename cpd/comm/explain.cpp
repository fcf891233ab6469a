// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/explain.h"

#include <algorithm>
#include <string>

#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"

namespace cpd {
namespace {

/// Where a step runs.
struct Runs {
  int gpu;  ///< -1: on the CPU
  std::int64_t size, block;

  void Note(const char* kernel) const {
    const std::string backend = gpu < 0 ? Kernels().name : "cuda:" + std::to_string(gpu);
    Explaining::Current()->Run(backend, kernel);
    if (gpu < 0) parallel_for(size, block, kSerialRanksBelow, [](std::int64_t, std::int64_t) {});
  }
};

void NoteLevel(const char* function, const Level& level, const std::string& order,
               const Runs& runs) {
  const KernelTable& kernels = Kernels();
  const Split kind = kernels.fold_path(TermsPlanOf(level.accumulator, level.terms_in), false);
  Path path = PathOfTerms(level.accumulator, kind, kernels.lanes, false);
  if (runs.gpu >= 0) path.why = "the GPU's kernels: the values decide";
  path.why = order + ", " + std::to_string(level.terms) + " terms" +
             (path.why.empty() ? "" : "; " + path.why);
  NotePath(function, path);
  runs.Note(runs.gpu < 0 ? "fold" : "fold_ranks");
}

}  // namespace

void NoteReduction(const Reduce& spec, int world, const std::vector<std::int64_t>& sizes,
                   const TensorOptions& layers, int gpu) {
  const Reduction reduction(spec, world, sizes, layers);
  if (sizes.empty()) return;
  const auto largest = std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
  const std::int64_t size = sizes[static_cast<std::size_t>(largest)];
  const Codec& wire = *reduction.wire(largest);
  const int casts_on = reduction.rounds_on_devices() ? gpu : -1;
  Path cast{wire.name(), ""};
  if (gpu >= 0 && casts_on < 0) cast.why = "the codec has no kernels on a GPU";
  if (spec.wire == nullptr) {
    cast = PathOf(spec.format, spec.rounding);
    if (spec.aps != Aps::off) {
      cast.why += std::string(cast.why.empty() ? "" : "; ") +
                  "scaled by a power of two (APS): the values decide";
    }
  }
  NotePath("encode", cast);
  const char* const on_cpu = spec.wire == nullptr ? "cast" : "compressor";
  Runs{casts_on, size, wire.block()}.Note(casts_on < 0 ? on_cpu : "cast_terms");
  const Runs sums{gpu, size, 4096};
  const std::string order = ToString(reduction.spec().order);
  if (reduction.grouped()) NoteLevel("sum_in_groups", reduction.Group(largest, 0), order, sums);
  NoteLevel("sum", reduction.Across(largest), order, sums);
}

}  // namespace cpd
