// SPDX-License-Identifier: Apache-2.0
//
// Computes round(a * b + c), to nearest even. a and b are E4M3; c and the result are FP32. The term
// with the smaller exponent is shifted right in a window of 54 bits. The bits that leave the window
// are combined into one sticky bit.
module fp8_fma_wide (
    input  logic [ 7:0] a,
    input  logic [ 7:0] b,
    input  logic [31:0] c,
    output logic [31:0] result
);
  logic [3:0] a_significand, b_significand;
  logic [7:0] product;
  logic signed [9:0] a_exponent, b_exponent;
  assign a_significand = {|a[6:3], a[2:0]};
  assign b_significand = {|b[6:3], b[2:0]};
  assign a_exponent = (a[6:3] == 0) ? -10'sd6 : $signed({6'd0, a[6:3]}) - 10'sd7;
  assign b_exponent = (b[6:3] == 0) ? -10'sd6 : $signed({6'd0, b[6:3]}) - 10'sd7;
  assign product = 8'(a_significand) * 8'(b_significand);

  logic c_infinite, c_nan, nan;
  assign c_infinite = (&c[30:23]) & (c[22:0] == 0);
  assign c_nan = (&c[30:23]) & (c[22:0] != 0);
  assign nan = (&a[6:0]) | (&b[6:0]) | c_nan;

  // significand * 2^(exponent - 23), not normalized: a product's first 7 bits may be 0.
  logic p_sign, c_sign;
  logic [23:0] p, q;
  logic signed [9:0] p_exponent, c_exponent;
  assign p_sign = a[7] ^ b[7];
  assign c_sign = c[31];
  assign p = {product, 16'd0};
  assign q = {|c[30:23], c[22:0]};
  assign p_exponent = a_exponent + b_exponent + 10'sd1;
  assign c_exponent = (c[30:23] == 0) ? -10'sd126 : $signed({2'd0, c[30:23]}) - 10'sd127;

  logic swap;
  logic signed [9:0] exponent, distance;
  logic [23:0] upper, lower;
  logic [53:0] x, t;
  logic [107:0] both;
  logic st;
  assign swap = (p == 0) | ((q != 0) & (c_exponent > p_exponent));
  assign exponent = swap ? c_exponent : p_exponent;
  assign distance = exponent - (swap ? p_exponent : c_exponent);
  assign upper = swap ? q : p;
  assign lower = swap ? p : q;
  assign x = {upper, 30'd0};
  assign both = {lower, 84'd0} >> ((distance > 10'sd54) ? 10'sd54 : distance);
  assign t = both[107:54];
  assign st = |both[53:0];

  logic subtract, negative;
  logic [56:0] y, total;
  logic [55:0] magnitude;
  assign subtract = p_sign ^ c_sign;
  assign y = {2'd0, t, st};
  assign total = subtract ? {2'd0, x, 1'b0} - y : {2'd0, x, 1'b0} + y;
  assign negative = total[56];
  assign magnitude = negative ? -total[55:0] : total[55:0];

  logic [5:0] top;
  always_comb begin
    top = '0;
    for (int k = 0; k < 56; k++) if (magnitude[k]) top = 6'(k);
  end

  // Bit 54 of the magnitude has the exponent `exponent`.
  logic signed [9:0] leading, normal, drop;
  assign leading = exponent + $signed({4'd0, top}) - 10'sd54;
  assign normal = (leading < -10'sd126) ? -10'sd126 : leading;
  assign drop = normal - 10'sd23 - (exponent - 10'sd54);

  logic [111:0] shifted;
  logic [23:0] kept;
  logic half, under, up;
  logic [33:0] code;
  assign shifted = (drop >= 0) ? {magnitude, 56'd0} >> drop : {magnitude, 56'd0} << -drop;
  assign kept = shifted[79:56];
  assign half = shifted[55];
  assign under = |shifted[54:0];
  assign up = half & (under | kept[0]);
  assign code = {1'b0, 10'(normal + 10'sd126), 23'd0} + {10'd0, kept} + {33'd0, up};

  logic sign;
  assign sign = (swap ? c_sign : p_sign) ^ negative;
  assign result = nan ? 32'h7FC00000
      : c_infinite ? c
      : (magnitude == 0) ? {p_sign & c_sign, 31'd0}
      : (code >= 34'h7F800000) ? {sign, 31'h7F800000}
      : {sign, code[30:0]};
endmodule
