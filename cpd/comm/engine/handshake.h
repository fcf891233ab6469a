// SPDX-License-Identifier: Apache-2.0
//
// The handshake, in which ranks check that all of them are about to make the same call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/comm/engine/link.h"
#include "cpd/comm/spec.h"

namespace cpd {

/// An intent: the description of a rank's next call, as pairs of a field's name and the field's
/// text.
using Intent = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t kMostRefusal = 8192;

/// Returns the fields of a reduction that must be equal on all ranks, except the fields that
/// describe layers. The first field is the operation's name. `seed` and `step`: the call's seed and
/// step.
Intent IntentOf(const std::string& operation, const Reduce& spec, std::uint64_t seed,
                std::uint64_t step);

/// Returns the text of the numbers that select layers' random streams. Consecutive numbers are
/// written as `first-last`. A list 0, 1, …, n - 1 has the text `0, 1, …`, and so has an empty list.
std::string NumbersText(std::span<const std::int64_t> numbers);

/// Compares the intents of all ranks, and the sizes and shapes of the layers (TensorOptions), as
/// texts of any length. The first field of an intent is the operation. The error names the first
/// field that differs. A rank that cannot take part gives its reason in `refusal`. Up to
/// kMostRefusal bytes of the reason are sent, with a note if the reason is shortened. `numbers`:
/// the layers' numbers in error texts; empty: 0, 1, …
///
/// Throws Mismatch with the same text on all ranks. On a rank that refuses, the function returns
/// instead of throwing.
void Handshake(Link& link, const Intent& intent, std::span<const std::int64_t> sizes,
               const std::string& refusal, std::span<const std::int64_t> numbers = {},
               std::span<const std::int64_t> shapes = {});

}  // namespace cpd
