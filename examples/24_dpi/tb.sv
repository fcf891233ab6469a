// SPDX-License-Identifier: Apache-2.0
//
// Test bench that calls CPD as the model inside the simulation: for products of random
// E4M3 codes, and for random blocks of 16 fp16 products of a matrix unit.
`timescale 1ns / 1ps
module tb;
  import cpd_dpi::*;
  localparam int PRODUCTS = 100000;
  localparam int BLOCKS = 1000;

  logic [7:0] a, b, result;
  logic [4:0] flags;
  fp_mul #(
      .EXP(4),
      .MAN(3),
      .ENCODING(1)
  ) mul (
      .a(a),
      .b(b),
      .rounding(3'd0),
      .saturate(1'b0),
      .r(1'b0),
      .result(result),
      .flags(flags)
  );

  logic [255:0] x, y;
  logic [31:0] c, sum;
  logic [4:0] sum_flags;
  block_fma unit (
      .a(x),
      .b(y),
      .c(c),
      .rounding(3'd1),
      .result(sum),
      .flags(sum_flags)
  );

  // ANDed to a word of two fp16 codes, this mask gives two numbers with magnitudes below 2.
  localparam int unsigned FINITE = 32'hBFFFBFFF;
  int unsigned words[16];
  int rule, dot, failures;
  int unsigned expected, raised;

  task automatic check(input int status);
    if (status < 0) $fatal(1, "%s", cpd_dpi_error());
  endtask

  initial begin
    failures = 0;
    rule = cpd_dpi_rule("mul", "e4m3fn", "e4m3fn", "nearest_even", 0);
    dot = cpd_dpi_dot("fp16", "h100-fp16", 16);
    check(rule);
    check(dot);
    for (int i = 0; i < PRODUCTS; i++) begin
      {a, b} = 16'($urandom);
      #1;
      check(cpd_dpi_compute(rule, 32'(a), 32'(b), 0, 0, expected, raised));
      if (32'(result) != expected || 32'(flags) != raised) failures++;
    end
    for (int i = 0; i < BLOCKS; i++) begin
      for (int k = 0; k < 16; k++) words[k] = $urandom & FINITE;
      x = {words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]};
      y = {words[8], words[9], words[10], words[11], words[12], words[13], words[14], words[15]};
      c = $urandom & 32'hBFFFFFFF;
      for (int k = 0; k < 16; k++)
        check(cpd_dpi_set(dot, k, 32'(x[16*k+:16]), 32'(y[16*k+:16])));
      #1;
      check(cpd_dpi_sum(dot, c, expected, raised));
      if (sum != expected || 32'(sum_flags) != raised) failures++;
    end
    if (failures != 0) $fatal(1, "FAIL: %0d differ", failures);
    $display("PASS: %0d products and %0d blocks equal CPD's", PRODUCTS, BLOCKS);
    $finish;
  end
endmodule
