// SPDX-License-Identifier: Apache-2.0
//
// 32 products of MX elements, their two E8M0 scales and c in one sum (block_fma.sv): Blackwell's
// rule for k = 32. By default MXFP8's E4M3.
module mx_dot32 #(
    parameter int EXP = 4,
    parameter int MAN = 3,
    parameter int ENCODING = 1,
    parameter int F = 25,
    parameter int MIN_EXPONENT = -133,
    parameter int EW = 12
) (
    input logic [32*(EXP+MAN+1)-1:0] a,
    input logic [32*(EXP+MAN+1)-1:0] b,
    input logic [7:0] scale_a,
    input logic [7:0] scale_b,
    input logic [31:0] c,
    input logic [2:0] rounding,
    output logic [31:0] product_sign,
    output logic [32*EW-1:0] product_exponent,
    output logic [32*(2*MAN+2)-1:0] product_significand,
    output logic [32*EW-1:0] shift,
    output logic [32:0] cut,
    output logic signed [EW-1:0] exponent,
    output logic signed [F+8:0] sum,
    output logic [31:0] result,
    output logic [4:0] flags
);
  logic signed [EW-1:0] scale;
  logic scale_nan;
`ifdef MUT_ONE_SCALE
  assign scale = $signed(EW'(scale_a)) - EW'(127);
`else
  assign scale = $signed(EW'(scale_a)) + $signed(EW'(scale_b)) - EW'(254);
`endif
`ifdef MUT_SCALE_NAN_IS_A_POWER
  assign scale_nan = 1'b0;
`else
  assign scale_nan = (&scale_a) | (&scale_b);
`endif
  block_fma #(
      .PRODUCTS(32),
      .EXP(EXP),
      .MAN(MAN),
      .ENCODING(ENCODING),
      .F(F),
      .MIN_EXPONENT(MIN_EXPONENT),
      .EW(EW)
  ) unit (
      .*
  );
endmodule
