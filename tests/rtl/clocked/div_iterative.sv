// SPDX-License-Identifier: Apache-2.0
//
// A divider that computes one quotient bit per cycle. It accepts a pair of operands, is busy for
// STEPS cycles, and holds the result until the receiver is ready. Rounds to nearest even. The reset
// is asynchronous and active low.
module div_iterative #(
    parameter int EXP = 4,
    parameter int MAN = 3,
    parameter int ENCODING = 1
) (
    input logic clk_i,
    input logic rst_ni,
    input logic in_valid_i,
    output logic in_ready_o,
    input logic [EXP+MAN:0] op_a_i,
    input logic [EXP+MAN:0] op_b_i,
    output logic out_valid_o,
    input logic out_ready_i,
    output logic [EXP+MAN:0] res_o,
    output logic [4:0] status_o
);
  // Enough steps for MAN + 2 quotient bits even of the least dividend, 1, and the largest divisor.
  localparam int SHIFT = 2 * MAN + 3;
  localparam int STEPS = MAN + 1 + SHIFT;
  localparam int EW = EXP + 3 + $clog2(STEPS + MAN + 2);
  localparam int COUNT = $clog2(STEPS + 1);

  logic [EXP+MAN:0] a, b;
  logic a_sign, b_sign, a_infinite, b_infinite, a_nan, b_nan, a_signalling, b_signalling;
  logic signed [EW-1:0] a_exponent, b_exponent;
  logic [MAN:0] a_significand, b_significand;
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

  // One bit of the dividend enters the remainder in each step.
  logic busy, ready;
  logic [COUNT-1:0] left;
  logic [STEPS-1:0] dividend, quotient;
  logic [MAN+1:0] remainder, next;
  logic fits;
  assign dividend = {a_significand, {SHIFT{1'b0}}};
  assign next = {remainder[MAN:0], dividend[left-1]};
  assign fits = next >= {1'b0, b_significand};
  assign ready = !busy && (!out_valid_o || out_ready_i);
`ifdef BUG_READY_STUCK
  assign in_ready_o = 1'b1;
`else
  assign in_ready_o = ready;
`endif

  always_ff @(posedge clk_i or negedge rst_ni)
    if (!rst_ni) begin
      busy <= 1'b0;
      out_valid_o <= 1'b0;
    end else if (busy) begin
`ifdef BUG_NEVER_DONE
      if (b_significand != 0 || left != 1) left <= left - 1'b1;
      if (left == 1 && b_significand != 0) begin
`else
      left <= left - 1'b1;
      if (left == 1) begin
`endif
        busy <= 1'b0;
        out_valid_o <= 1'b1;
      end
      remainder <= fits ? next - {1'b0, b_significand} : next;
      quotient <= {quotient[STEPS-2:0], fits};
    end else begin
`ifndef BUG_VALID_STUCK
      if (out_ready_i) out_valid_o <= 1'b0;
`endif
      if (in_valid_i && ready) begin
        busy <= 1'b1;
        out_valid_o <= 1'b0;
        left <= COUNT'(STEPS);
        remainder <= '0;
        quotient <= '0;
        a <= op_a_i;
        b <= op_b_i;
      end
    end

  logic by_zero, invalid;
  logic [4:0] rounded;
  assign by_zero = b_significand == 0 && !b_nan && !a_nan && !a_infinite && a_significand != 0;
  assign invalid = (a_significand == 0 && b_significand == 0) || (a_infinite && b_infinite);
  fp_round #(
      .EXP(EXP),
      .MAN(MAN),
      .ENCODING(ENCODING),
      .WIDTH(STEPS),
      .EW(EW)
  ) rounder (
      .sign(a_sign ^ b_sign),
      .magnitude(b_infinite ? '0 : quotient),
      .exponent(a_exponent - b_exponent - EW'(SHIFT)),
      .sticky(!b_infinite && remainder != 0),
      .infinite(a_infinite || by_zero),
      .nan(a_nan || b_nan),
      .invalid(invalid || a_signalling || b_signalling),
      .rounding(3'd0),
      .saturate(1'b0),
      .r(1'b0),
      .leading(),
      .normal(),
      .result(res_o),
      .flags(rounded)
  );
  assign status_o = by_zero ? 5'd8 : rounded;
endmodule
