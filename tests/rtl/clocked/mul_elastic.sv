// SPDX-License-Identifier: Apache-2.0
//
// A multiplier for OCP's E4M3 in three stages, with valid and ready on both sides and an
// asynchronous, active-low reset. A stage passes its data on if the next stage is empty or passes
// its own data on.
module mul_elastic (
    input logic clk_i,
    input logic rst_ni,
    input logic in_valid_i,
    output logic in_ready_o,
    input logic [7:0] op_a_i,
    input logic [7:0] op_b_i,
    output logic out_valid_o,
    input logic out_ready_i,
    output logic [7:0] res_o,
    output logic [4:0] status_o
);
  logic [7:0] a, b, product;
  logic [4:0] raised;
  logic [12:0] second, third;
  logic [2:0] full, moves;

  fp_mul #(
      .EXP(4),
      .MAN(3),
      .ENCODING(1)
  ) multiplier (
      .a(a),
      .b(b),
      .rounding(3'd0),
      .saturate(1'b0),
      .r(1'b0),
      .result(product),
      .flags(raised)
  );

  assign moves[2] = !full[2] || out_ready_i;
  assign moves[1] = !(&full[2:1]) || out_ready_i;
  assign moves[0] = !(&full) || out_ready_i;
`ifdef BUG_READY_STUCK
  assign in_ready_o = 1'b1;
`else
  assign in_ready_o = moves[0];
`endif
`ifdef BUG_UNSTABLE
  assign {res_o, status_o} = out_ready_i ? third : second;
`else
  assign {res_o, status_o} = third;
`endif
`ifdef BUG_VALID_EARLY
  assign out_valid_o = full[1];
`else
  assign out_valid_o = full[2];
`endif

  always_ff @(posedge clk_i or negedge rst_ni)
    if (!rst_ni) full <= 3'b000;
    else begin
`ifdef BUG_VALID_STUCK
      if (moves[0]) full[0] <= full[0] | in_valid_i;
`else
      if (moves[0]) full[0] <= in_valid_i;
`endif
`ifdef BUG_LINE_LOST
      if (moves[1]) full[1] <= full[0] & !(a == 8'h3c && b == 8'hb8);
`else
      if (moves[1]) full[1] <= full[0];
`endif
      if (moves[2]) full[2] <= full[1];
    end

  always_ff @(posedge clk_i) begin
    if (moves[0]) begin
      a <= op_a_i;
      b <= op_b_i;
    end
    if (moves[1]) second <= {product, raised};
`ifdef BUG_UNKNOWN
    if (moves[2]) third <= second[12:5] == 8'h7e ? {second[12:6], 1'bx, second[4:0]} : second;
`else
    if (moves[2]) third <= second;
`endif
  end
endmodule
