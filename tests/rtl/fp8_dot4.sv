// SPDX-License-Identifier: Apache-2.0
//
// Computes c + a[0] b[0] + … + a[3] b[3]. The E4M3 products and the bf16 addend c are aligned to the
// greatest exponent, truncated toward zero to 12 fraction bits, summed, and rounded once to bf16, to
// nearest even.
// A zero sum is +0, whatever the signs of its terms.
module fp8_dot4 (
    input  logic [31:0] a,
    input  logic [31:0] b,
    input  logic [15:0] c,
    output logic [15:0] result
);
  localparam int F = 12;
  localparam logic signed [9:0] LEAST = -10'sd133;  // the exponent of a zero

  // Terms 0 to 3 are products with 6 fraction bits, term 4 is c with 7.
  logic [4:0] negative;
  logic signed [9:0] exponent[0:4];
  logic [F+1:0] units[0:4];
  logic [3:0] product_nan;

  genvar i;
  generate
    for (i = 0; i < 4; i = i + 1) begin : gen_product
      logic [7:0] x, y;
      logic [3:0] x_significand, y_significand;
      logic [7:0] significand;
      logic signed [9:0] x_exponent, y_exponent;
      assign x = a[8*i+:8];
      assign y = b[8*i+:8];
      assign product_nan[i] = (&x[6:0]) | (&y[6:0]);
      assign x_significand = {|x[6:3], x[2:0]};
      assign y_significand = {|y[6:3], y[2:0]};
      assign x_exponent = (x[6:3] == 0) ? -10'sd6 : $signed({6'd0, x[6:3]}) - 10'sd7;
      assign y_exponent = (y[6:3] == 0) ? -10'sd6 : $signed({6'd0, y[6:3]}) - 10'sd7;
      assign significand = 8'(x_significand) * 8'(y_significand);
      assign negative[i] = x[7] ^ y[7];
      assign exponent[i] = (significand == 0) ? LEAST : x_exponent + y_exponent;
      assign units[i] = {significand, 6'd0};
    end
  endgenerate

  logic [7:0] c_significand;
  logic c_infinite, c_nan;
  assign c_significand = {|c[14:7], c[6:0]};
  assign c_infinite = (&c[14:7]) & (c[6:0] == 0);
  assign c_nan = (&c[14:7]) & (c[6:0] != 0);
  assign negative[4] = c[15];
  assign exponent[4] = (c_significand == 0) ? LEAST
      : (c[14:7] == 0) ? -10'sd126 : $signed({2'd0, c[14:7]}) - 10'sd127;
  assign units[4] = {1'b0, c_significand, 5'd0};

  logic signed [9:0] greatest;
  logic signed [F+5:0] sum;
  logic [F+1:0] cut;
  always_comb begin
    greatest = LEAST;
    for (int k = 0; k < 5; k++) if (exponent[k] > greatest) greatest = exponent[k];
    sum = '0;
    cut = '0;
    for (int k = 0; k < 5; k++) begin
      cut = units[k] >> (greatest - exponent[k]);
      sum = negative[k] ? sum - $signed({4'd0, cut}) : sum + $signed({4'd0, cut});
    end
  end

  // The leading one at `top` has the exponent `leading`; the last place of the result is `last`.
  logic sign;
  logic [F+5:0] magnitude;
  logic [4:0] top;
  logic signed [9:0] leading, normal, last, drop;
  assign sign = sum < 0;
  assign magnitude = sign ? -sum : sum;
  always_comb begin
    top = '0;
    for (int k = 0; k < F + 6; k++) if (magnitude[k]) top = 5'(k);
  end
  assign leading = greatest - 10'(F) + $signed({5'd0, top});
  assign normal = (leading < -10'sd126) ? -10'sd126 : leading;
  assign last = normal - 10'sd7;
  assign drop = last - (greatest - 10'(F));

  logic [F+13:0] shifted;
  logic [7:0] kept;
  logic half, under, up;
  logic [17:0] code;
  assign shifted = (drop > 0) ? {magnitude, 8'd0} >> drop : {magnitude, 8'd0} << -drop;
  assign kept = shifted[15:8];
  assign half = shifted[7];
  assign under = (|shifted[6:0]) | ((drop > 7) & (|(magnitude & ~({(F + 6) {1'b1}} << (drop - 8)))));
  assign up = half & (under | kept[0]);
  assign code = {1'b0, 10'(normal + 10'sd126), 7'd0} + {10'd0, kept} + {17'd0, up};

  assign result = ((|product_nan) | c_nan) ? 16'h7FC0
      : c_infinite ? c
      : (sum == 0) ? 16'h0000
      : (code >= 18'h7F80) ? {sign, 15'h7F80}
      : {sign, code[14:0]};
endmodule
