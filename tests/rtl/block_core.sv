// SPDX-License-Identifier: Apache-2.0
//
// One block of a matrix unit. The terms are PRODUCTS exact products and the addend c. Each term is
// truncated toward zero to F bits below the greatest exponent; the sum is exact and is rounded once.
// A product's exponent is the sum of its operands' exponents and `scale`. Zeros have the exponent
// MIN_EXPONENT, which is also the least exponent of the block. c has the result's format. The lowest
// bits of a packed port hold element 0. A zero result is +0; a sum beyond the range is Inf. If
// `special` is 1, the other inner signals have no meaning.
module block_core #(
    parameter int PRODUCTS = 16,
    parameter int EXP = 5,
    parameter int MAN = 10,
    parameter int ENCODING = 0,
    parameter int OUT_EXP = 8,
    parameter int OUT_MAN = 23,
    parameter int F = 25,
    parameter int MIN_EXPONENT = -133,
    parameter int EW = 12,
    // Bits of a product, and of a sum in units of 2^(max_exp - F).
    parameter int S = 2 * MAN + 2,
    parameter int SW = F + 3 + $clog2(PRODUCTS + 1)
) (
    input logic [PRODUCTS*(EXP+MAN+1)-1:0] a,
    input logic [PRODUCTS*(EXP+MAN+1)-1:0] b,
    input logic [OUT_EXP+OUT_MAN:0] c,
    input logic signed [EW-1:0] scale,
    input logic scale_nan,
    input logic [2:0] rounding,
    // For each product and for c: sign, exponent, significand, shift in bits, bits that are lost.
    output logic [PRODUCTS-1:0] p_sign,
    output logic [PRODUCTS*EW-1:0] p_exp,
    output logic [PRODUCTS*S-1:0] p_sig,
    output logic [PRODUCTS*EW-1:0] p_shift,
    output logic [PRODUCTS*S-1:0] p_cut,
    output logic c_sign,
    output logic [EW-1:0] c_exp,
    output logic [OUT_MAN:0] c_sig,
    output logic [EW-1:0] c_shift,
    output logic [OUT_MAN:0] c_cut,
    output logic [EW-1:0] max_exp,
    // The sum, and its normalized form 1.fraction * 2^n_exp.
    output logic [SW-1:0] sum,
    output logic n_sign,
    output logic [EW-1:0] n_exp,
    output logic [SW-2:0] n_sig,
    output logic special,  // a term is infinite or NaN
    output logic [OUT_EXP+OUT_MAN:0] result,
    output logic [4:0] flags
);
  localparam int CODE = EXP + MAN + 1;
  localparam int U = F + 2;  // bits of an aligned term
  localparam int P = OUT_MAN + 1;
`ifdef MUT_NO_LEAST_EXPONENT
  localparam logic signed [EW-1:0] LEAST = EW'(-600);
`else
  localparam logic signed [EW-1:0] LEAST = EW'(MIN_EXPONENT);
`endif

  logic signed [EW-1:0] products_max, exponent;
  logic [PRODUCTS-1:0] plus_infinite, minus_infinite, nan, signalling, invalid, inexact;
  logic [PRODUCTS*SW-1:0] term;

  genvar i;
  generate
    for (i = 0; i < PRODUCTS; i = i + 1) begin : gen_product
      logic x_sign, y_sign, x_infinite, y_infinite, x_nan, y_nan, negative, infinite;
      logic x_signalling, y_signalling;
      logic signed [EW-1:0] x_exponent, y_exponent, e, places;
      logic [MAN:0] x, y;
      logic [S-1:0] exact, product, lost;
      logic [U-1:0] units;
      logic [SW-1:0] extended;
      fp_unpack #(
          .EXP(EXP),
          .MAN(MAN),
          .ENCODING(ENCODING),
          .EW(EW)
      ) unpack_x (
          .code(a[i*CODE+:CODE]),
          .sign(x_sign),
          .exponent(x_exponent),
          .significand(x),
          .infinite(x_infinite),
          .nan(x_nan),
          .signalling(x_signalling)
      );
      fp_unpack #(
          .EXP(EXP),
          .MAN(MAN),
          .ENCODING(ENCODING),
          .EW(EW)
      ) unpack_y (
          .code(b[i*CODE+:CODE]),
          .sign(y_sign),
          .exponent(y_exponent),
          .significand(y),
          .infinite(y_infinite),
          .nan(y_nan),
          .signalling(y_signalling)
      );
      assign negative = x_sign ^ y_sign;
      assign exact = S'(x) * S'(y);
`ifdef MUT_EXPONENT_NORMALISED
      assign product = exact >> exact[S-1];
      assign e = (exact == 0) ? LEAST : x_exponent + y_exponent + scale + EW'(exact[S-1]);
`else
      assign product = exact;
      assign e = (exact == 0) ? LEAST : x_exponent + y_exponent + scale;
`endif

`ifdef MUT_CUT_BEFORE_MAXIMUM
      assign places = products_max - e;
`else
      assign places = exponent - e;
`endif
      block_align #(
          .WIDTH(S),
          .FRACTION(2 * MAN),
          .F(F),
          .EW(EW)
      ) align (
          .significand(product),
          .places(places),
          .units(units),
          .lost(lost)
      );
      assign extended = {{(SW - U) {1'b0}}, units};
`ifdef MUT_CUT_DOWN
      assign term[i*SW+:SW] = !negative ? extended : (lost != 0) ? ~extended : -extended;
`else
      assign term[i*SW+:SW] = negative ? -extended : extended;
`endif

      assign infinite = x_infinite | y_infinite;
      assign nan[i] = x_nan | y_nan;
      assign signalling[i] = x_signalling | y_signalling;
      assign invalid[i] = infinite & (exact == 0) & !(x_nan | y_nan);
      assign plus_infinite[i] = infinite & !negative;
      assign minus_infinite[i] = infinite & negative;
      assign inexact[i] = lost != 0;

      assign p_sign[i] = negative;
      assign p_exp[i*EW+:EW] = e;
      assign p_sig[i*S+:S] = product;
      assign p_shift[i*EW+:EW] = places;
      assign p_cut[i*S+:S] = lost;
    end
  endgenerate

  logic c_infinite, c_nan, c_signalling;
  logic signed [EW-1:0] c_exponent, c_e, c_places;
  logic [U-1:0] c_units;
  fp_unpack #(
      .EXP(OUT_EXP),
      .MAN(OUT_MAN),
      .EW(EW)
  ) unpack_c (
      .code(c),
      .sign(c_sign),
      .exponent(c_exponent),
      .significand(c_sig),
      .infinite(c_infinite),
      .nan(c_nan),
      .signalling(c_signalling)
  );
  assign c_e = (c_sig == 0) ? LEAST : c_exponent;
  assign c_places = exponent - c_e;
  block_align #(
      .WIDTH(P),
      .FRACTION(OUT_MAN),
      .F(F),
      .EW(EW)
  ) align_c (
      .significand(c_sig),
      .places(c_places),
      .units(c_units),
      .lost(c_cut)
  );
  assign c_exp = c_e;
  assign c_shift = c_places;

  always_comb begin
    products_max = LEAST;
    for (int k = 0; k < PRODUCTS; k++)
      if ($signed(p_exp[k*EW+:EW]) > products_max) products_max = $signed(p_exp[k*EW+:EW]);
  end
  assign exponent = (c_e > products_max) ? c_e : products_max;
  assign max_exp = exponent;

  logic signed [SW-1:0] products, total, addend;
  logic [SW-1:0] c_extended;
  always_comb begin
    products = '0;
    for (int k = 0; k < PRODUCTS; k++) products = products + $signed(term[k*SW+:SW]);
  end
  assign c_extended = {{(SW - U) {1'b0}}, c_units};
  assign addend = c_sign ? -c_extended : c_extended;
`ifdef MUT_CUT_BEFORE_MAXIMUM
  // The bug: the sum of the products is truncated, instead of each product.
  logic [SW-1:0] late;
  assign late = (products[SW-1] ? -products : products) >> (exponent - products_max);
  assign total = addend + (products[SW-1] ? -$signed(late) : $signed(late));
`elsif MUT_SUM_TOO_NARROW
  logic signed [SW-1:0] whole;
  assign whole = products + addend;
  assign total = {{3{whole[SW-3]}}, whole[SW-4:0]};
`else
  assign total = products + addend;
`endif
  assign sum = total;

  logic up, down, is_nan, is_invalid, sign;
  assign up = (|plus_infinite) | (c_infinite & !c_sign);
  assign down = (|minus_infinite) | (c_infinite & c_sign);
  assign is_nan = (|nan) | c_nan | scale_nan;
  assign is_invalid = !is_nan & ((|invalid) | (up & down));
  assign special = is_nan | is_invalid | up | down;
  assign sign = (up | down) ? down : total[SW-1];

  localparam int W = (SW > OUT_MAN + 2) ? SW : OUT_MAN + 2;
  logic signed [EW-1:0] leading;
  logic [SW-1:0] absolute;
  logic [W-1:0] magnitude, normal;
  assign absolute = total[SW-1] ? -total : total;
  assign magnitude = {{(W - SW) {1'b0}}, absolute};
  logic [OUT_EXP+OUT_MAN:0] rounded;
  logic [4:0] rounded_flags;
  fp_round #(
      .EXP(OUT_EXP),
      .MAN(OUT_MAN),
      .WIDTH(W),
      .EW(EW),
      .BEYOND_INFINITE(1)
  ) rounder (
      .sign(sign),
      .magnitude(magnitude),
      .exponent(exponent - EW'(F)),
      .sticky(1'b0),
      .infinite(up | down),
      .nan(is_nan),
      .invalid(is_invalid | (|signalling) | c_signalling),
      .rounding(rounding),
      .saturate(1'b0),
      .r(1'b0),
      .leading(leading),
      .normal(normal),
      .result(rounded),
      .flags(rounded_flags)
  );
`ifdef MUT_NEGATIVE_ZERO
  assign result = rounded;
`else
  assign result = (rounded[OUT_EXP+OUT_MAN-1:0] == 0) ? '0 : rounded;
`endif
  assign flags = rounded_flags | {4'b0000, !special & ((|inexact) | (c_cut != 0))};
  assign n_sign = total[SW-1];
  assign n_exp = (total == 0) ? '0 : leading;
  assign n_sig = normal[W-1-:SW-1];
endmodule
