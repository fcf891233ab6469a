// SPDX-License-Identifier: Apache-2.0
//
// Sums products of MX elements, scaled by two E8M0 scales, and c in one block (block_core.sv), as
// Blackwell does. The defaults describe an MXFP8 block of E4M3 elements. A product's significand
// is as wide as one that includes the scales' significands, which are 1. A zero product is positive.
module mx_dot #(
    parameter int PRODUCTS = 32,
    parameter int EXP = 4,
    parameter int MAN = 3,
    parameter int ENCODING = 1,
    parameter int F = 25,
    parameter int MIN_EXPONENT = -133,
    parameter int EW = 12,
    parameter int S = 2 * MAN + 4,
    parameter int SW = F + 5 + $clog2(PRODUCTS + 1)
) (
    input logic [PRODUCTS*(EXP+MAN+1)-1:0] a,
    input logic [PRODUCTS*(EXP+MAN+1)-1:0] b,
    input logic [31:0] c,
    input logic [7:0] a_scale,
    input logic [7:0] b_scale,
    input logic [2:0] rounding,
    output logic [PRODUCTS-1:0] p_sign,
    output logic [PRODUCTS*EW-1:0] p_exp,
    output logic [PRODUCTS*S-1:0] p_sig,
    output logic [PRODUCTS*EW-1:0] p_shift,
    output logic [PRODUCTS*S-1:0] p_cut,
    output logic c_sign,
    output logic [EW-1:0] c_exp,
    output logic [23:0] c_sig,
    output logic [EW-1:0] c_shift,
    output logic [23:0] c_cut,
    output logic [EW-1:0] max_exp,
    output logic [SW-1:0] sum,
    output logic n_sign,
    output logic [EW-1:0] n_exp,
    output logic [SW-2:0] n_sig,
    output logic special,
    output logic [31:0] block_sum,
    output logic [31:0] result,
    output logic [4:0] flags
);
  localparam int PRODUCT = 2 * MAN + 2;

  logic signed [EW-1:0] scale;
  logic scale_nan;
`ifdef MUT_ONE_SCALE
  assign scale = $signed(EW'(a_scale)) - EW'(127);
`else
  assign scale = $signed(EW'(a_scale)) + $signed(EW'(b_scale)) - EW'(254);
`endif
`ifdef MUT_SCALE_NAN_IS_A_POWER
  assign scale_nan = 1'b0;
`else
  assign scale_nan = (&a_scale) | (&b_scale);
`endif

  logic [PRODUCTS-1:0] sign;
  logic [PRODUCTS*PRODUCT-1:0] significand, cut;
  logic [SW-3:0] narrow;
  logic [SW-4:0] normal;
  block_core #(
      .PRODUCTS(PRODUCTS),
      .EXP(EXP),
      .MAN(MAN),
      .ENCODING(ENCODING),
      .F(F),
      .MIN_EXPONENT(MIN_EXPONENT),
      .EW(EW)
  ) core (
      .p_sign(sign),
      .p_sig(significand),
      .p_cut(cut),
      .sum(narrow),
      .n_sig(normal),
      .*
  );

  genvar i;
  generate
    for (i = 0; i < PRODUCTS; i = i + 1) begin : gen_product
      assign p_sign[i] = sign[i] & (significand[i*PRODUCT+:PRODUCT] != 0);
      assign p_sig[i*S+:S] = {2'b00, significand[i*PRODUCT+:PRODUCT]};
      assign p_cut[i*S+:S] = {2'b00, cut[i*PRODUCT+:PRODUCT]};
    end
  endgenerate
  assign sum = {{2{narrow[SW-3]}}, narrow};
  assign n_sig = {normal, 2'b00};
  assign block_sum = result;
endmodule
