// SPDX-License-Identifier: Apache-2.0
//
// Computes result = round(a * b).
module fp_mul #(
    parameter int EXP = 4,
    parameter int MAN = 3,
    parameter int ENCODING = 0,
    parameter int OUT_EXP = EXP,
    parameter int OUT_MAN = MAN,
    parameter int OUT_ENCODING = ENCODING,
    parameter int RANDOM = 1
) (
    input logic [EXP+MAN:0] a,
    input logic [EXP+MAN:0] b,
    input logic [2:0] rounding,
    input logic saturate,
    input logic [RANDOM-1:0] r,
    output logic [OUT_EXP+OUT_MAN:0] result,
    output logic [4:0] flags
);
  localparam int WIDTH = 2 * MAN + 2;
  localparam int EW = ((EXP > OUT_EXP) ? EXP : OUT_EXP) + 3 + $clog2(WIDTH + OUT_MAN + RANDOM + 1);

  logic a_sign, b_sign, a_infinite, b_infinite, a_nan, b_nan;
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

  logic invalid;
`ifdef MUT_ZERO_TIMES_INFINITY
  assign invalid = 1'b0;
`else
  assign invalid = (a_infinite & (b_significand == 0)) | ((a_significand == 0) & b_infinite);
`endif

  fp_round #(
      .EXP(OUT_EXP),
      .MAN(OUT_MAN),
      .ENCODING(OUT_ENCODING),
      .WIDTH(WIDTH),
      .EW(EW),
      .RANDOM(RANDOM)
  ) rounder (
      .sign(a_sign ^ b_sign),
      .magnitude(WIDTH'(a_significand) * WIDTH'(b_significand)),
      .exponent(a_exponent + b_exponent - EW'(2 * MAN)),
      .sticky(1'b0),
      .infinite(a_infinite | b_infinite),
      .nan(a_nan | b_nan),
      .invalid(invalid | a_signalling | b_signalling),
      .rounding(rounding),
      .saturate(saturate),
      .r(r),
      .leading(),
      .normal(),
      .result(result),
      .flags(flags)
  );
endmodule
