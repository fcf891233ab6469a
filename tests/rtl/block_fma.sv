// SPDX-License-Identifier: Apache-2.0
//
// One block of a matrix unit: PRODUCTS exact products and c, each cut toward zero to F bits below
// the greatest exponent, summed exactly, rounded once. A product's exponent is the sum of its
// operands' and of `scale`; that of the block is at least MIN_EXPONENT. c has the result's format.
// Element 0 of a packed operand is its lowest bits. A zero sum is +0.
module block_fma #(
    parameter int PRODUCTS = 16,
    parameter int EXP = 5,
    parameter int MAN = 10,
    parameter int ENCODING = 0,
    parameter int OUT_EXP = 8,
    parameter int OUT_MAN = 23,
    parameter int F = 25,
    parameter int MIN_EXPONENT = -133,
    parameter int EW = 12
) (
    input logic [PRODUCTS*(EXP+MAN+1)-1:0] a,
    input logic [PRODUCTS*(EXP+MAN+1)-1:0] b,
    input logic [OUT_EXP+OUT_MAN:0] c,
    input logic signed [EW-1:0] scale,
    input logic scale_nan,
    input logic [2:0] rounding,
    output logic [PRODUCTS-1:0] product_sign,
    output logic [PRODUCTS*EW-1:0] product_exponent,
    output logic [PRODUCTS*(2*MAN+2)-1:0] product_significand,
    output logic [PRODUCTS*EW-1:0] shift,
    output logic [PRODUCTS:0] cut,  // whether bits were lost; the last is c's
    output logic signed [EW-1:0] exponent,
    output logic signed [F+2+$clog2(PRODUCTS+1):0] sum,
    output logic [OUT_EXP+OUT_MAN:0] result,
    output logic [4:0] flags
);
  localparam int CODE = EXP + MAN + 1;
  localparam int S = 2 * MAN + 2;
  localparam int U = F + 2;  // bits of a term in units of 2^(exponent - F)
  localparam int T = ((F > 2 * MAN) ? F : 2 * MAN) + 2;  // of one that is not yet cut
  localparam int C = ((F > OUT_MAN) ? F : OUT_MAN) + 2;
  localparam int SW = U + $clog2(PRODUCTS + 1) + 1;

  // x cut toward zero by so many places, and whether bits that were set are lost.
  function automatic logic [EW-1:0] at_most(input logic signed [EW-1:0] places,
                                            input logic signed [EW-1:0] most);
    at_most = (places > most) ? most : places;
  endfunction

  logic [PRODUCTS-1:0] zero, plus_infinite, minus_infinite, nan, invalid;
  logic [PRODUCTS*SW-1:0] term;

  genvar i;
  generate
    for (i = 0; i < PRODUCTS; i = i + 1) begin : gen_product
      logic x_sign, y_sign, x_infinite, y_infinite, x_nan, y_nan;
      logic signed [EW-1:0] x_exponent, y_exponent, places;
      logic [MAN:0] x, y;
      logic [S-1:0] significand;
      logic [T-1:0] kept, lost;
      logic [U-1:0] units;
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
          .nan(x_nan)
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
          .nan(y_nan)
      );
      assign product_sign[i] = x_sign ^ y_sign;
`ifdef MUT_EXPONENT_NORMALISED
      assign significand = (S'(x) * S'(y)) >> (x * S'(y) >> (S - 1));
      assign product_exponent[i*EW+:EW] =
          x_exponent + y_exponent + scale + $signed(EW'(S'(x) * S'(y) >> (S - 1)));
`else
      assign significand = S'(x) * S'(y);
      assign product_exponent[i*EW+:EW] = x_exponent + y_exponent + scale;
`endif
      assign product_significand[i*S+:S] = significand;
      assign zero[i] = significand == 0;

`ifdef MUT_CUT_BEFORE_MAXIMUM
      assign places = greatest_product - $signed(product_exponent[i*EW+:EW]);
`else
      assign places = exponent - $signed(product_exponent[i*EW+:EW]);
`endif
      assign shift[i*EW+:EW] = zero[i] ? '0 : places;
      assign {kept, lost} = {significand, {(2 * T - S) {1'b0}}} >> at_most(places, EW'(T));
      assign units = kept[T-1-:U];
      assign cut[i] = (|(kept << U)) | (|lost);
`ifdef MUT_FRACTION_BIT_FEWER
      assign term[i*SW+:SW] = product_sign[i] ? -SW'({units[U-1:1], 1'b0}) : SW'({units[U-1:1], 1'b0});
`elsif MUT_CUT_DOWN
      assign term[i*SW+:SW] = product_sign[i] ? -SW'(units) - SW'(cut[i]) : SW'(units);
`else
      assign term[i*SW+:SW] = product_sign[i] ? -SW'(units) : SW'(units);
`endif

      logic infinite;
      assign infinite = x_infinite | y_infinite;
      assign nan[i] = x_nan | y_nan;
      assign invalid[i] = infinite & zero[i] & !nan[i];
      assign plus_infinite[i] = infinite & !product_sign[i];
      assign minus_infinite[i] = infinite & product_sign[i];
    end
  endgenerate

  logic c_sign, c_infinite, c_nan;
  logic signed [EW-1:0] c_exponent, c_places;
  logic [OUT_MAN:0] c_significand;
  logic [C-1:0] c_kept, c_lost;
  logic [U-1:0] c_units;
  fp_unpack #(
      .EXP(OUT_EXP),
      .MAN(OUT_MAN),
      .EW(EW)
  ) unpack_c (
      .code(c),
      .sign(c_sign),
      .exponent(c_exponent),
      .significand(c_significand),
      .infinite(c_infinite),
      .nan(c_nan)
  );
  assign c_places = exponent - c_exponent;
  assign {c_kept, c_lost} = {1'b0, c_significand, {(2 * C - OUT_MAN - 2) {1'b0}}}
      >> at_most(c_places, EW'(C));
  assign c_units = c_kept[C-1-:U];
  assign cut[PRODUCTS] = (|(c_kept << U)) | (|c_lost);

  // The greatest exponent of what is not zero.
  function automatic logic signed [EW-1:0] greatest(input logic [PRODUCTS*EW-1:0] exponents,
                                                    input logic [PRODUCTS-1:0] without,
                                                    input logic signed [EW-1:0] least);
    greatest = least;
    for (int k = 0; k < PRODUCTS; k++)
      if (!without[k] && $signed(exponents[k*EW+:EW]) > greatest)
        greatest = $signed(exponents[k*EW+:EW]);
  endfunction
  logic signed [EW-1:0] greatest_product;
`ifdef MUT_NO_LEAST_EXPONENT
  assign greatest_product = greatest(product_exponent, zero, EW'(-600));
`else
  assign greatest_product = greatest(product_exponent, zero, EW'(MIN_EXPONENT));
`endif
  assign exponent =
      (c_significand != 0 && c_exponent > greatest_product) ? c_exponent : greatest_product;

  function automatic logic signed [SW-1:0] total(input logic [PRODUCTS*SW-1:0] terms);
    total = '0;
    for (int k = 0; k < PRODUCTS; k++) total = total + $signed(terms[k*SW+:SW]);
  endfunction
  logic signed [SW-1:0] products, addend;
  logic [SW-1:0] magnitude;
  logic negative;
`ifdef MUT_CUT_BEFORE_MAXIMUM
  logic signed [SW-1:0] uncut;
  assign uncut = total(term);
  assign products = uncut[SW-1] ? -((-uncut) >> at_most(exponent - greatest_product, EW'(SW)))
                                : uncut >> at_most(exponent - greatest_product, EW'(SW));
`else
  assign products = total(term);
`endif
  assign addend = c_sign ? -$signed(SW'(c_units)) : $signed(SW'(c_units));
`ifdef MUT_SUM_TOO_NARROW
  logic signed [SW-1:0] whole;
  assign whole = products + addend;
  assign sum = {{3{whole[SW-3]}}, whole[SW-4:0]};
`else
  assign sum = products + addend;
`endif
  assign negative = sum[SW-1];
  assign magnitude = negative ? -sum : sum;

  logic up, down, is_invalid, is_nan, sign;
  assign up = (|plus_infinite) | (c_infinite & !c_sign);
  assign down = (|minus_infinite) | (c_infinite & c_sign);
  assign is_nan = (|nan) | c_nan | scale_nan;
  assign is_invalid = !is_nan & ((|invalid) | (up & down));
`ifdef MUT_NEGATIVE_ZERO
  assign sign = (up | down) ? down : negative | (sum == 0 & (&product_sign) & c_sign);
`else
  assign sign = (up | down) ? down : negative;
`endif

  logic [4:0] rounded_flags;
  fp_round #(
      .EXP(OUT_EXP),
      .MAN(OUT_MAN),
      .WIDTH(SW),
      .EW(EW),
      .BEYOND_INFINITE(1)
  ) rounder (
      .sign(sign),
      .magnitude(magnitude),
      .exponent(exponent - EW'(F)),
      .sticky(1'b0),
      .infinite(up | down),
      .nan(is_nan),
      .invalid(is_invalid),
      .rounding(rounding),
      .saturate(1'b0),
      .r(1'b0),
      .result(result),
      .flags(rounded_flags)
  );
  assign flags = rounded_flags | {4'b0000, (|cut) & !(up | down | is_nan | is_invalid)};
endmodule
