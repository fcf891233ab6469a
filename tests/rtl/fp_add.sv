// SPDX-License-Identifier: Apache-2.0
//
// Computes result = round(a + b). If the exponents differ, at least one operand is normal. Three bits
// below the last bit of that operand are then enough if the result has the operands' format.
module fp_add #(
    parameter int EXP = 4,
    parameter int MAN = 3,
    parameter int ENCODING = 0,
    parameter int OUT_EXP = EXP,
    parameter int OUT_MAN = MAN,
    parameter int OUT_ENCODING = ENCODING
) (
    input logic [EXP+MAN:0] a,
    input logic [EXP+MAN:0] b,
    input logic [2:0] rounding,
    input logic saturate,
    output logic [OUT_EXP+OUT_MAN:0] result,
    output logic [4:0] flags
);
  localparam int GUARD = (OUT_EXP == EXP && OUT_MAN == MAN) ? 3 : MAN + OUT_MAN + 4;
  localparam int WIDTH = MAN + 1 + GUARD;
  localparam int EW = ((EXP > OUT_EXP) ? EXP : OUT_EXP) + 3 + $clog2(WIDTH + OUT_MAN + 2);

  logic a_sign, b_sign;
  logic a_infinite, b_infinite, a_nan, b_nan;
  logic a_signalling, b_signalling;
  logic signed [EW-1:0] a_exponent, b_exponent;
  logic [MAN:0] a_significand, b_significand;
  fp_unpack #(
      .EXP(EXP),
      .MAN(MAN),
      .ENCODING(ENCODING),
      .EW(EW)
  ) unpack_a (
      .code(a),
      .sign(a_sign),
      .exponent(a_exponent),
      .significand(a_significand),
      .infinite(a_infinite),
      .nan(a_nan),
      .signalling(a_signalling)
  );
  fp_unpack #(
      .EXP(EXP),
      .MAN(MAN),
      .ENCODING(ENCODING),
      .EW(EW)
  ) unpack_b (
      .code(b),
      .sign(b_sign),
      .exponent(b_exponent),
      .significand(b_significand),
      .infinite(b_infinite),
      .nan(b_nan),
      .signalling(b_signalling)
  );

  logic sign, sticky;
  logic [WIDTH:0] magnitude;
  logic signed [EW-1:0] exponent;
  fp_align #(
      .WIDTH(WIDTH),
      .EW(EW)
  ) align (
      .x_sign(a_sign),
      .x({a_significand, {GUARD{1'b0}}}),
      .x_exponent(a_exponent - EW'(MAN + GUARD)),
      .y_sign(b_sign),
      .y({b_significand, {GUARD{1'b0}}}),
      .y_exponent(b_exponent - EW'(MAN + GUARD)),
      .rounding(rounding),
      .sign(sign),
      .magnitude(magnitude),
      .exponent(exponent),
      .sticky(sticky)
  );

  logic infinite, infinite_sign, nan, invalid;
  assign infinite = a_infinite | b_infinite;
  assign infinite_sign = a_infinite ? a_sign : b_sign;
  assign nan = a_nan | b_nan;
`ifdef MUT_INFINITY_MINUS_INFINITY
  assign invalid = 1'b0;
`else
  assign invalid = a_infinite & b_infinite & (a_sign ^ b_sign);
`endif

  fp_round #(
      .EXP(OUT_EXP),
      .MAN(OUT_MAN),
      .ENCODING(OUT_ENCODING),
      .WIDTH(WIDTH + 1),
      .EW(EW)
  ) rounder (
      .sign(infinite ? infinite_sign : sign),
      .magnitude(magnitude),
      .exponent(exponent),
      .sticky(sticky),
      .infinite(infinite),
      .nan(nan),
      .invalid(invalid | a_signalling | b_signalling),
      .rounding(rounding),
      .saturate(saturate),
      .r(1'b0),
      .leading(),
      .normal(),
      .result(result),
      .flags(flags)
  );
endmodule
