// SPDX-License-Identifier: Apache-2.0
//
// Computes (-1)^x_sign * x * 2^x_exponent + (-1)^y_sign * y * 2^y_exponent in the form that fp_round
// needs. The term with the smaller exponent is shifted right, and `sticky` is 1 if nonzero bits leave
// the window.
module fp_align #(
    parameter int WIDTH = 8,
    parameter int EW = 8
) (
    input logic x_sign,
    input logic [WIDTH-1:0] x,
    input logic signed [EW-1:0] x_exponent,
    input logic y_sign,
    input logic [WIDTH-1:0] y,
    input logic signed [EW-1:0] y_exponent,
    input logic [2:0] rounding,
    output logic sign,
    output logic [WIDTH:0] magnitude,
    output logic signed [EW-1:0] exponent,
    output logic sticky
);
  localparam int COUNT = $clog2(WIDTH + 1);

  logic swap, subtract;
  assign swap = (x == 0) | ((y != 0) & (y_exponent > x_exponent));
  assign subtract = x_sign ^ y_sign;

  logic [WIDTH-1:0] greater, lesser, shifted, lost;
  logic signed [EW-1:0] distance;
  logic [COUNT-1:0] places;
  assign greater = swap ? y : x;
  assign lesser = swap ? x : y;
  assign exponent = swap ? y_exponent : x_exponent;
  assign distance = exponent - (swap ? x_exponent : y_exponent);
  assign places = (distance > EW'(WIDTH)) ? COUNT'(WIDTH) : distance[COUNT-1:0];
  assign {shifted, lost} = {lesser, {WIDTH{1'b0}}} >> places;
`ifdef MUT_ALIGNMENT_STICKY_DROPPED
  assign sticky = 1'b0;
`else
  assign sticky = |lost;
`endif

  // If bits of a subtrahend are lost, one unit is borrowed from the last place.
  logic [WIDTH+1:0] difference;
  logic negative, borrow, zero, cancels;
  assign difference = {2'b00, greater} - {2'b00, shifted};
  assign negative = difference[WIDTH+1];
`ifdef MUT_NO_BORROW
  assign borrow = 1'b0;
`else
  assign borrow = sticky & !negative & (difference != 0);
`endif
  assign magnitude = !subtract ? {1'b0, greater} + {1'b0, shifted}
                   : negative ? -difference[WIDTH:0]
                   : difference[WIDTH:0] - {{WIDTH{1'b0}}, borrow};

  // x - x is -0 with rounding down and +0 with every other rounding. (-0) + (-0) is -0.
  assign zero = (magnitude == 0) & !sticky;
`ifdef MUT_ZERO_SIGN_DOWN
  assign cancels = 1'b0;
`else
  assign cancels = rounding == 3'd2;
`endif
  assign sign = zero & subtract ? cancels
              : (swap ? y_sign : x_sign) ^ (subtract & (negative | (difference == 0)));
endmodule
