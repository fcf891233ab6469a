// SPDX-License-Identifier: Apache-2.0
//
// The handshake, by which ranks check before a call that all make the same one.
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

/// A rank's next call, field by field, as text.
using Intent = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t kMostRefusal = 8192;

/// All fields of a reduction that must be equal on all ranks, but the layers'; first the
/// operation's name. `seed` and `step`: the call's.
Intent IntentOf(const std::string& operation, const Reduce& spec, std::uint64_t seed,
                std::uint64_t step);

/// The text of layers' numbers in random streams, runs as `first-last`; no numbers have the text of
/// 0, 1, ….
std::string NumbersText(std::span<const std::int64_t> numbers);

/// Compares all ranks' intents, whose first field is the operation, and their layers' sizes and
/// shapes (TensorOptions), as whole texts of any length. The error names the first field that
/// differs. A rank that cannot take part gives its reason in `refusal`. Up to kMostRefusal bytes of
/// it are sent, with a note if it is shortened. `numbers`: the layers' numbers in errors; empty: 0,
/// 1, … Throws Mismatch with the same text on all ranks; the rank that refuses returns instead.
void Handshake(Link& link, const Intent& intent, std::span<const std::int64_t> sizes,
               const std::string& refusal, std::span<const std::int64_t> numbers = {},
               std::span<const std::int64_t> shapes = {});

}  // namespace cpd
