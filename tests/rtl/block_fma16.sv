// SPDX-License-Identifier: Apache-2.0
//
// A matrix unit's block of 16 products (block_fma.sv), by default an H100's for fp16.
module block_fma16 #(
    parameter int EXP = 5,
    parameter int MAN = 10,
    parameter int ENCODING = 0,
    parameter int OUT_EXP = 8,
    parameter int OUT_MAN = 23,
    parameter int F = 25,
    parameter int MIN_EXPONENT = -133,
    parameter int EW = 12
) (
    input logic [16*(EXP+MAN+1)-1:0] a,
    input logic [16*(EXP+MAN+1)-1:0] b,
    input logic [OUT_EXP+OUT_MAN:0] c,
    input logic [2:0] rounding,
    output logic [15:0] product_sign,
    output logic [16*EW-1:0] product_exponent,
    output logic [16*(2*MAN+2)-1:0] product_significand,
    output logic [16*EW-1:0] shift,
    output logic [16:0] cut,
    output logic signed [EW-1:0] exponent,
    output logic signed [F+7:0] sum,
    output logic [OUT_EXP+OUT_MAN:0] result,
    output logic [4:0] flags
);
  block_fma #(
      .PRODUCTS(16),
      .EXP(EXP),
      .MAN(MAN),
      .ENCODING(ENCODING),
      .OUT_EXP(OUT_EXP),
      .OUT_MAN(OUT_MAN),
      .F(F),
      .MIN_EXPONENT(MIN_EXPONENT),
      .EW(EW)
  ) unit (
      .scale({EW{1'b0}}),
      .scale_nan(1'b0),
      .*
  );
endmodule
