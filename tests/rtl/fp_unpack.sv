// SPDX-License-Identifier: Apache-2.0
//
// Splits a code into the parts of its value, (-1)^sign * significand * 2^(exponent - MAN). All formats
// have a sign, MAN >= 1, subnormals and the default bias, 2^(EXP - 1) - 1. Subnormals have the least
// exponent. ENCODING: 0 (ieee) has Inf and NaN in the top exponent; 1 (fn) has no Inf, and only the
// code of all ones is NaN; 2 (finite) has neither Inf nor NaN.
module fp_unpack #(
    parameter int EXP = 4,
    parameter int MAN = 3,
    parameter int ENCODING = 0,
    parameter int EW = EXP + 1
) (
    input  logic [EXP+MAN:0] code,
    output logic sign,
    output logic signed [EW-1:0] exponent,
    output logic [MAN:0] significand,
    output logic infinite,
    output logic nan,
    output logic signalling  // a NaN whose highest fraction bit is 0; only with ENCODING 0
);
  localparam int BIAS = 2 ** (EXP - 1) - 1;

  logic [EXP-1:0] field;
  logic [MAN-1:0] fraction;
  assign {sign, field, fraction} = code;

  logic normal, top;
  assign normal = |field;
  assign top = &field;
`ifdef MUT_FLUSH_SUBNORMALS
  assign significand = normal ? {1'b1, fraction} : '0;
`else
  assign significand = {normal, fraction};
`endif
  assign exponent = $signed({{(EW - EXP) {1'b0}}, field}) - (normal ? EW'(BIAS) : EW'(BIAS - 1));

  generate
    if (ENCODING == 0) begin : gen_ieee
      assign infinite = top & (fraction == 0);
      assign nan = top & (fraction != 0);
`ifdef MUT_QUIET_SIGNALS
      assign signalling = nan;
`else
      assign signalling = nan & !fraction[MAN-1];
`endif
    end else begin : gen_finite
      assign infinite = 1'b0;
      assign nan = (ENCODING == 1) & top & (&fraction);
      assign signalling = 1'b0;
    end
  endgenerate
endmodule
