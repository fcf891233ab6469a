// SPDX-License-Identifier: Apache-2.0
//
// Computes result = round(a * b + c) with a single rounding.
module fp_fma #(
    parameter int EXP = 4,
    parameter int MAN = 3,
    parameter int ENCODING = 0,
    parameter int OUT_EXP = EXP,
    parameter int OUT_MAN = MAN,
    parameter int OUT_ENCODING = ENCODING
) (
    input logic [EXP+MAN:0] a,
    input logic [EXP+MAN:0] b,
    input logic [EXP+MAN:0] c,
    input logic [2:0] rounding,
    input logic saturate,
    output logic [OUT_EXP+OUT_MAN:0] result,
    output logic [4:0] flags
);
  // A product has 2 * MAN + 2 bits, and its highest bit may be 0. c is placed one bit lower.
  localparam int GUARD = (OUT_EXP == EXP && OUT_MAN == MAN) ? 3 : 2 * MAN + OUT_MAN + 5;
  localparam int WIDTH = 2 * MAN + 2 + GUARD;
  localparam int EW = ((EXP > OUT_EXP) ? EXP : OUT_EXP) + 3 + $clog2(WIDTH + OUT_MAN + 2);

  logic a_sign, b_sign, c_sign;
  logic a_infinite, b_infinite, c_infinite, a_nan, b_nan, c_nan;
  logic a_signalling, b_signalling, c_signalling;
  logic signed [EW-1:0] a_exponent, b_exponent, c_exponent;
  logic [MAN:0] a_significand, b_significand, c_significand;
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
  fp_unpack #(
      .EXP(EXP),
      .MAN(MAN),
      .ENCODING(ENCODING),
      .EW(EW)
  ) unpack_c (
      .code(c),
      .sign(c_sign),
      .exponent(c_exponent),
      .significand(c_significand),
      .infinite(c_infinite),
      .nan(c_nan),
      .signalling(c_signalling)
  );

  logic product_sign;
  logic [2*MAN+1:0] exact, product;
  assign product_sign = a_sign ^ b_sign;
  assign exact = (2 * MAN + 2)'(a_significand) * (2 * MAN + 2)'(b_significand);
`ifdef MUT_PRODUCT_CUT
  assign product = (exact >> MAN) << MAN;
`else
  assign product = exact;
`endif

  logic sign, sticky;
  logic [WIDTH:0] magnitude;
  logic signed [EW-1:0] exponent;
  fp_align #(
      .WIDTH(WIDTH),
      .EW(EW)
  ) align (
      .x_sign(product_sign),
      .x({product, {GUARD{1'b0}}}),
      .x_exponent(a_exponent + b_exponent - EW'(2 * MAN + GUARD)),
      .y_sign(c_sign),
      .y({1'b0, c_significand, {(MAN + GUARD) {1'b0}}}),
      .y_exponent(c_exponent - EW'(2 * MAN + GUARD)),
      .rounding(rounding),
      .sign(sign),
      .magnitude(magnitude),
      .exponent(exponent),
      .sticky(sticky)
  );

  logic product_infinite, product_invalid, infinite, infinite_sign, nan, invalid;
  assign product_infinite = a_infinite | b_infinite;
`ifdef MUT_ZERO_TIMES_INFINITY
  assign product_invalid = 1'b0;
`else
  assign product_invalid = (a_infinite & (b_significand == 0)) | ((a_significand == 0) & b_infinite);
`endif
  assign infinite = product_infinite | c_infinite;
  assign infinite_sign = product_infinite ? product_sign : c_sign;
  assign nan = a_nan | b_nan | c_nan;
  assign invalid = !nan
      & (product_invalid | (product_infinite & c_infinite & (product_sign ^ c_sign)));

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
      .invalid(invalid | a_signalling | b_signalling | c_signalling),
      .rounding(rounding),
      .saturate(saturate),
      .r(1'b0),
      .leading(),
      .normal(),
      .result(result),
      .flags(flags)
  );
endmodule
