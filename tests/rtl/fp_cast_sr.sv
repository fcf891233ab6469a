// SPDX-License-Identifier: Apache-2.0
//
// Computes result = round(a), the cast into another format. If `rounding` is 6 (stochastic), r holds
// the random bits.
module fp_cast_sr #(
    parameter int EXP = 8,
    parameter int MAN = 23,
    parameter int ENCODING = 0,
    parameter int OUT_EXP = 4,
    parameter int OUT_MAN = 3,
    parameter int OUT_ENCODING = 1,
    parameter int RANDOM = 8
) (
    input logic [EXP+MAN:0] a,
    input logic [RANDOM-1:0] r,
    input logic [2:0] rounding,
    input logic saturate,
    output logic [OUT_EXP+OUT_MAN:0] result,
    output logic [4:0] flags
);
  localparam int WIDTH = MAN + 1;
  localparam int EW =
      ((EXP > OUT_EXP) ? EXP : OUT_EXP) + 3 + $clog2(WIDTH + OUT_MAN + RANDOM + 1);

  logic a_sign;
  logic a_infinite, a_nan;
  logic a_signalling;
  logic signed [EW-1:0] a_exponent;
  logic [MAN:0] a_significand;
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

  fp_round #(
      .EXP(OUT_EXP),
      .MAN(OUT_MAN),
      .ENCODING(OUT_ENCODING),
      .WIDTH(WIDTH),
      .EW(EW),
      .RANDOM(RANDOM)
  ) rounder (
      .sign(a_sign),
      .magnitude(a_significand),
      .exponent(a_exponent - EW'(MAN)),
      .sticky(1'b0),
      .infinite(a_infinite),
      .nan(a_nan),
      .invalid(a_signalling),
      .rounding(rounding),
      .saturate(saturate),
      .r(r),
      .leading(),
      .normal(),
      .result(result),
      .flags(flags)
  );
endmodule
