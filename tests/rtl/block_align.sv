// SPDX-License-Identifier: Apache-2.0
//
// Shifts significand * 2^-FRACTION right by `places` and truncates the result toward zero to units of
// 2^-F. Also outputs the bits of the significand that are lost.
module block_align #(
    parameter int WIDTH = 22,
    parameter int FRACTION = 20,
    parameter int F = 25,
    parameter int EW = 12,
    parameter int U = F + 2
) (
    input logic [WIDTH-1:0] significand,
    input logic signed [EW-1:0] places,
    output logic [U-1:0] units,
    output logic [WIDTH-1:0] lost
);
  localparam int UP = (F > FRACTION) ? F - FRACTION : 0;
  localparam int DOWN = (FRACTION > F) ? FRACTION - F : 0;
  localparam int T = WIDTH + UP;  // a shift by T or more places loses all bits
  localparam int COUNT = $clog2(T + 1);

  logic [COUNT-1:0] by;
  logic [T-1:0] exact, kept;
  assign by = (places > EW'(T)) ? COUNT'(T) : places[COUNT-1:0];
  assign exact = {significand, {UP{1'b0}}};
  assign kept = exact >> by >> DOWN;
`ifdef MUT_FRACTION_BIT_FEWER
  assign units = U'(kept >> 1) << 1;
`else
  assign units = U'(kept);
`endif
  assign lost = WIDTH'((exact ^ (T'(units) << DOWN << by)) >> UP);
endmodule
