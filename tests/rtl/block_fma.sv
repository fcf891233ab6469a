// SPDX-License-Identifier: Apache-2.0
//
// A matrix unit's block (block_core.sv); the defaults are an H100's for fp16. c and the result have
// the format (OUT_EXP, OUT_MAN). The unit sums with SUM_MAN fraction bits and truncates c to them.
module block_fma #(
    parameter int PRODUCTS = 16,
    parameter int EXP = 5,
    parameter int MAN = 10,
    parameter int ENCODING = 0,
    parameter int OUT_EXP = 8,
    parameter int OUT_MAN = 23,
    parameter int SUM_MAN = OUT_MAN,
    parameter int F = 25,
    parameter int MIN_EXPONENT = -133,
    parameter int EW = 12,
    parameter int S = 2 * MAN + 2,
    parameter int SW = F + 3 + $clog2(PRODUCTS + 1)
) (
    input logic [PRODUCTS*(EXP+MAN+1)-1:0] a,
    input logic [PRODUCTS*(EXP+MAN+1)-1:0] b,
    input logic [OUT_EXP+OUT_MAN:0] c,
    input logic [2:0] rounding,
    output logic [PRODUCTS-1:0] p_sign,
    output logic [PRODUCTS*EW-1:0] p_exp,
    output logic [PRODUCTS*S-1:0] p_sig,
    output logic [PRODUCTS*EW-1:0] p_shift,
    output logic [PRODUCTS*S-1:0] p_cut,
    output logic c_sign,
    output logic [EW-1:0] c_exp,
    output logic [SUM_MAN:0] c_sig,
    output logic [EW-1:0] c_shift,
    output logic [SUM_MAN:0] c_cut,
    output logic [EW-1:0] max_exp,
    output logic [SW-1:0] sum,
    output logic n_sign,
    output logic [EW-1:0] n_exp,
    output logic [SW-2:0] n_sig,
    output logic special,
    output logic [OUT_EXP+SUM_MAN:0] block_sum,
    output logic [OUT_EXP+OUT_MAN:0] result,
    output logic [4:0] flags
);
  localparam int REST = OUT_MAN - SUM_MAN;

  logic [OUT_EXP+SUM_MAN:0] c_kept;
  logic [4:0] unit_flags, c_flags;
  generate
    if (REST > 0) begin : gen_cut
      logic top, rest;
      assign top = &c[OUT_MAN+:OUT_EXP];
      assign rest = |c[REST-1:0];
      // Truncating the fraction of a NaN must not make an Inf.
      assign c_kept = c[OUT_EXP+OUT_MAN:REST]
          | {{(OUT_EXP + 1) {1'b0}}, top & (c[OUT_MAN-1:0] != 0), {(SUM_MAN - 1) {1'b0}}};
      logic signalling;
      assign signalling = top & (c[OUT_MAN-1:0] != 0) & !c[OUT_MAN-1];
      assign c_flags = {
        signalling, 2'b00, !top & rest & (c[OUT_MAN+:OUT_EXP] == 0), !top & rest
      };
      assign result = {block_sum, {REST{1'b0}}};
    end else begin : gen_whole
      assign c_kept = c;
      assign c_flags = '0;
      assign result = block_sum;
    end
  endgenerate

  block_core #(
      .PRODUCTS(PRODUCTS),
      .EXP(EXP),
      .MAN(MAN),
      .ENCODING(ENCODING),
      .OUT_EXP(OUT_EXP),
      .OUT_MAN(SUM_MAN),
      .F(F),
      .MIN_EXPONENT(MIN_EXPONENT),
      .EW(EW)
  ) core (
      .c(c_kept),
      .scale({EW{1'b0}}),
      .scale_nan(1'b0),
      .result(block_sum),
      .flags(unit_flags),
      .*
  );
  assign flags = unit_flags | c_flags;
endmodule
