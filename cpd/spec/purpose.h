// SPDX-License-Identifier: Apache-2.0
//
// The purposes of roundings. Each purpose has its own stream of random bits
// (cpd/numeric/draws/streams.h). A recipe (recipe.h) determines the format of the rounding for each
// purpose of a layer.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cpd/export.h"

namespace cpd {

enum class Purpose : std::uint8_t {
  given = 0,  ///< the caller's stream without change: a forward GEMM, a single cast

  // a collective's
  wire = 1,    ///< a contribution's cast; position = rank
  sum = 2,     ///< the steps of an ordered sum; position = group, or kAcross
  result = 3,  ///< the rounding of a sum into the result's format; position as for sum

  // The purposes of roundings in a layer of a model, and in the derivatives of an operation.
  grad_input = 4,     ///< the GEMM that gives the gradient of the input, or of a first operand
  grad_weight = 5,    ///< the GEMM that gives the gradient of the weight, or of a second operand
  grad_bias = 6,      ///< the sum that gives the gradient of the bias, or of a third operand
  recast_weight = 7,  ///< the weight's cast for grad_input, if it differs from the forward cast
  cast_activation = 8,
  cast_weight = 9,
  cast_gradient = 10,  ///< the gradient's cast for grad_input
  cast_output = 11,
  tangent_input = 12,   ///< forward mode: the product of the input's tangent
  tangent_weight = 13,  ///< forward mode: the product of the weight's tangent
  /// The activation's cast for grad_weight, if that cast differs from the forward cast.
  recast_activation = 14,
  recast_gradient = 15,  ///< the gradient's cast for grad_weight, if it differs from cast_gradient
};

/// All purposes of roundings and their names, in the order of the purposes' numbers.
constexpr std::array<std::pair<std::string_view, Purpose>, 16> kPurposes{{
    {"given", Purpose::given},
    {"wire", Purpose::wire},
    {"sum", Purpose::sum},
    {"result", Purpose::result},
    {"grad_input", Purpose::grad_input},
    {"grad_weight", Purpose::grad_weight},
    {"grad_bias", Purpose::grad_bias},
    {"recast_weight", Purpose::recast_weight},
    {"cast_activation", Purpose::cast_activation},
    {"cast_weight", Purpose::cast_weight},
    {"cast_gradient", Purpose::cast_gradient},
    {"cast_output", Purpose::cast_output},
    {"tangent_input", Purpose::tangent_input},
    {"tangent_weight", Purpose::tangent_weight},
    {"recast_activation", Purpose::recast_activation},
    {"recast_gradient", Purpose::recast_gradient},
}};

/// ParsePurpose throws Error for a name that is not in kPurposes.
CPD_API Purpose ParsePurpose(std::string_view name);
CPD_API std::string ToString(Purpose purpose);

}  // namespace cpd
