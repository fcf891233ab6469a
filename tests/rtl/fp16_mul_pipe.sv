// SPDX-License-Identifier: Apache-2.0
//
// Computes round(a * b) in FP16, to nearest even, with all flags. The pipeline has three stages:
// unpack, multiply and normalize, round. Operands enter in cycles with valid_in = 1; rst empties
// the pipeline.
module fp16_mul_pipe (
    input  logic        clk,
    input  logic        rst,
    input  logic        valid_in,
    input  logic [15:0] a,
    input  logic [15:0] b,
    output logic        valid_out,
    output logic [15:0] result,
    output logic [ 4:0] flags  // NX 1, UF 2 (tiny after rounding), OF 4, DZ 8, NV 16
);
  // ---- unpack
  logic valid_1, sign_1, zero_1, infinite_1, nan_1, invalid_1;
  logic [10:0] x_1, y_1;
  logic signed [7:0] exponent_1;
  logic a_infinite, b_infinite, a_nan, b_nan, a_zero, b_zero;
  assign a_infinite = (&a[14:10]) & (a[9:0] == 0);
  assign b_infinite = (&b[14:10]) & (b[9:0] == 0);
  assign a_nan = (&a[14:10]) & (a[9:0] != 0);
  assign b_nan = (&b[14:10]) & (b[9:0] != 0);
  assign a_zero = a[14:0] == 0;
  assign b_zero = b[14:0] == 0;

  function automatic logic signed [7:0] exponent_of(input logic [4:0] field);
    exponent_of = (field == 0) ? -8'sd14 : $signed({3'd0, field}) - 8'sd15;
  endfunction

  always_ff @(posedge clk) begin
    if (rst) valid_1 <= 1'b0;
    else valid_1 <= valid_in;
    sign_1 <= a[15] ^ b[15];
    x_1 <= {|a[14:10], a[9:0]};
    y_1 <= {|b[14:10], b[9:0]};
    exponent_1 <= exponent_of(a[14:10]) + exponent_of(b[14:10]);
    zero_1 <= a_zero | b_zero;
    infinite_1 <= a_infinite | b_infinite;
    nan_1 <= a_nan | b_nan | (a_infinite & b_zero) | (a_zero & b_infinite);
    invalid_1 <= (a_nan & !a[9]) | (b_nan & !b[9])
        | (!a_nan & !b_nan & ((a_infinite & b_zero) | (a_zero & b_infinite)));
  end

  // ---- multiply and normalize: 1.fraction * 2^exponent_2, the leading one in bit 21
  logic valid_2, sign_2, zero_2, infinite_2, nan_2, invalid_2;
  logic [21:0] product, product_2;
  logic signed [7:0] exponent_2;
  logic [4:0] zeros;
  assign product = 22'(x_1) * 22'(y_1);
  always_comb begin
    zeros = 5'd22;
    for (int i = 0; i < 22; i++) if (product[i]) zeros = 5'(21 - i);
  end
  always_ff @(posedge clk) begin
    if (rst) valid_2 <= 1'b0;
    else valid_2 <= valid_1;
    sign_2 <= sign_1;
    zero_2 <= zero_1;
    infinite_2 <= infinite_1;
    nan_2 <= nan_1;
    invalid_2 <= invalid_1;
    product_2 <= product << zeros;
    exponent_2 <= exponent_1 + 8'sd1 - $signed({3'd0, zeros});
  end

  // ---- round
  logic subnormal, half, under, up, up_unbounded, inexact, tiny, overflow;
  logic signed [7:0] below;
  logic [4:0] places;
  logic [43:0] shifted;
  logic [10:0] kept;
  logic [16:0] code;
  assign below = -8'sd14 - exponent_2;
  assign subnormal = below > 0;
  assign places = !subnormal ? 5'd0 : (below > 8'sd22) ? 5'd22 : below[4:0];
  assign shifted = {product_2, 22'd0} >> places;
  assign kept = shifted[43:33];
  assign half = shifted[32];
  assign under = |shifted[31:0];
  assign up = half & (under | kept[0]);
  assign inexact = half | under;
  assign up_unbounded = product_2[10] & ((|product_2[9:0]) | product_2[11]);
  assign tiny = subnormal & !((below == 8'sd1) & up_unbounded & (&product_2[21:11]));
  assign code = {2'd0, subnormal ? 5'd0 : 5'(exponent_2 + 8'sd14), 10'd0}
      + {6'd0, kept} + {16'd0, up};
  assign overflow = (exponent_2 > 8'sd15) | (!subnormal & (code >= 17'h7C00));

  always_ff @(posedge clk) begin
    if (rst) valid_out <= 1'b0;
    else valid_out <= valid_2;
    result <= nan_2 ? 16'h7E00
        : infinite_2 ? {sign_2, 15'h7C00}
        : zero_2 ? {sign_2, 15'd0}
        : overflow ? {sign_2, 15'h7C00}
        : {sign_2, code[14:0]};
    flags <= nan_2 ? {invalid_2, 4'd0}
        : (infinite_2 | zero_2) ? 5'd0
        : overflow ? 5'd5
        : {3'd0, tiny & inexact, inexact};
  end
endmodule
