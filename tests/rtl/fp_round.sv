// SPDX-License-Identifier: Apache-2.0
//
// Rounds (-1)^sign * (magnitude + d) * 2^exponent to a format; every module here uses it. If
// `sticky` is 1, d is an unknown number with 0 < d < 1; otherwise d is 0. A zero keeps its sign.
// ENCODING: 0 is ieee, 1 is fn (see fp_unpack.sv).
//
// rounding: 0 to nearest even, 1 toward zero, 2 down, 3 up, 4 to nearest away, 5 to odd, 6
// stochastic (variant A): away from zero if the first RANDOM lost bits, plus r, give a carry.
// leading, normal: the exact value is normal, read as 1.fraction, times 2^leading. Undefined for
// zero.
// flags: NX 1, UF 2 (tiny after rounding), OF 4, DZ 8 (never), NV 16.
module fp_round #(
    parameter int EXP = 4,
    parameter int MAN = 3,
    parameter int ENCODING = 0,
    parameter int WIDTH = 8,
    parameter int EW = 8,  // bits of signed exponents: holds EXP + 1 bits, WIDTH, and one more
    parameter int RANDOM = 1,
    parameter int BEYOND_INFINITE = 0,  // 1: overflow gives Inf in every rounding mode
    parameter int P = MAN + 1,
    parameter int W = (WIDTH > P + RANDOM) ? WIDTH : P + RANDOM
) (
    input logic sign,
    input logic [WIDTH-1:0] magnitude,
    input logic signed [EW-1:0] exponent,
    input logic sticky,
    input logic infinite,  // the exact result is infinite
    input logic nan,  // an operand is NaN
    input logic invalid,  // the result is NaN without a NaN operand, or an operand is a signaling NaN
    input logic [2:0] rounding,
    input logic saturate,
    input logic [RANDOM-1:0] r,
    output logic signed [EW-1:0] leading,
    output logic [W-1:0] normal,
    output logic [EXP+MAN:0] result,
    output logic [4:0] flags
);
  localparam int REST = W - P;
  localparam int EMIN = 2 - 2 ** (EXP - 1);
  localparam int COUNT = $clog2(W + 1);
  localparam logic [EXP+MAN-1:0] TOP = '1;
  localparam logic [EXP+MAN-1:0] LARGEST =
      TOP - ((ENCODING == 0) ? 2 ** MAN : 1);
  localparam logic [EW+MAN:0] LAST = (EW + MAN + 1)'(LARGEST);
  localparam logic [EXP+MAN-1:0] INFINITE = TOP - 2 ** MAN + 1;
  localparam logic [EXP+MAN-1:0] QUIET = (ENCODING == 0) ? TOP - 2 ** (MAN - 1) + 1 : TOP;

  // Shifts the leading one to the highest bit.
  function automatic logic [COUNT-1:0] leading_zeros(input logic [W-1:0] x);
    leading_zeros = COUNT'(W);
    for (int i = 0; i < W; i++) if (x[i]) leading_zeros = COUNT'(W - 1 - i);
  endfunction

  logic [W-1:0] wide;
  logic [COUNT-1:0] zeros;
  logic signed [EW-1:0] below;
  assign wide = {magnitude, {(W - WIDTH) {1'b0}}};
  assign zeros = leading_zeros(wide);
  assign normal = wide << zeros;
  assign leading = exponent + EW'(WIDTH - 1) - $signed(EW'(zeros));

  // The number of bits that are lost because the exponent is below the least exponent.
  logic subnormal;
  logic [COUNT-1:0] places;
  assign below = EW'(EMIN) - leading;
  assign subnormal = below > 0;
  assign places = !subnormal ? '0 : (below > EW'(W)) ? COUNT'(W) : below[COUNT-1:0];

  logic [W-1:0] bounded, lost;
  logic bounded_sticky;
  assign {bounded, lost} = {normal, {W{1'b0}}} >> places;
`ifdef MUT_STICKY_DROPPED
  assign bounded_sticky = sticky;
`else
  assign bounded_sticky = sticky | (|lost);
`endif

  // True if the kept digits are incremented, away from zero.
  function automatic logic away(input logic negative, input logic [2:0] mode, input logic odd,
                                input logic [REST-1:0] rest, input logic more,
                                input logic [RANDOM-1:0] random);
    logic half, under, inexact;
    logic [RANDOM:0] drawn;
    half = rest[REST-1];
    under = more | (|(rest << 1));
    inexact = half | under;
    drawn = {1'b0, rest[REST-1-:RANDOM]} + {1'b0, random};
`ifdef MUT_RANDOM_BIT_LOST
    drawn = {1'b0, rest[REST-1-:RANDOM]} + {1'b0, random[RANDOM-1:1], 1'b0};
`endif
`ifdef MUT_RANDOM_ROUNDS
    drawn = drawn + {1'b0, rest << RANDOM != 0};
`endif
    case (mode)
`ifdef MUT_TIES_AWAY
      3'd0: away = half;
`else
      3'd0: away = half & (under | odd);
`endif
      3'd2: away = negative & inexact;
      3'd3: away = !negative & inexact;
      3'd4: away = half;
      3'd5: away = inexact & !odd;
`ifdef MUT_RANDOM_UP
      3'd6: away = negative ? inexact & !drawn[RANDOM] : drawn[RANDOM];
`else
      3'd6: away = drawn[RANDOM];
`endif
      default: away = 1'b0;
    endcase
  endfunction

  // Rounds twice: with an unbounded exponent range, which decides overflow and tininess, and with the
  // format's exponent range, which gives the result.
  logic up_unbounded, up, inexact, carries, tiny;
  logic [P:0] rounded;
  assign up_unbounded = away(sign, rounding, normal[REST], normal[REST-1:0], sticky, r);
  assign carries = up_unbounded & (&normal[W-1:REST]);
`ifdef MUT_ROUNDED_TWICE
  // The bug: rounds to the format's precision first and then to the spacing of subnormals.
  logic [2*W-1:0] twice;
  assign twice = {1'b0, {1'b0, normal[W-1:REST]} + {{P{1'b0}}, up_unbounded}, {(2 * W - P - 2) {1'b0}}}
      >> places;
  assign up = subnormal
      ? away(sign, rounding, twice[2*W-1-P-1], twice[2*W-3-P-:REST], |twice[2*W-3-P-REST:0], r)
      : up_unbounded;
  assign rounded = subnormal ? twice[2*W-2-:P+1] + {{P{1'b0}}, up}
                             : {1'b0, bounded[W-1:REST]} + {{P{1'b0}}, up};
`else
  assign up = away(sign, rounding, bounded[REST], bounded[REST-1:0], bounded_sticky, r);
  assign rounded = {1'b0, bounded[W-1:REST]} + {{P{1'b0}}, up};
`endif
  assign inexact = (|bounded[REST-1:0]) | bounded_sticky;
`ifdef MUT_LEAST_NORMAL_NOT_TINY
  assign tiny = !rounded[P-1] & !rounded[P] & subnormal;
`else
  assign tiny = subnormal & !(below == 1 & carries);
`endif

  // The hidden bit is added to the exponent field, which increases the field by one.
  logic [EW+MAN:0] code;
  logic signed [EW-1:0] base;
  logic beyond, inward;
  assign base = subnormal ? '0 : leading - EW'(EMIN);
  assign code = {1'b0, base, {MAN{1'b0}}} + (EW + MAN + 1)'(rounded);
`ifdef MUT_OVERFLOW_BEFORE_ROUNDING
  assign beyond = !subnormal & ({1'b0, base, {MAN{1'b0}}} + normal[W-1:REST] > LAST
      | ({1'b0, base, {MAN{1'b0}}} + normal[W-1:REST] == LAST & inexact));
`else
  assign beyond = code > LAST;
`endif
`ifdef MUT_TOWARD_ZERO_OVERFLOWS
  assign inward = 1'b0;
`else
  assign inward = (rounding == 1) | (rounding == 5) | (rounding == (sign ? 3 : 2));
`endif

  logic [EXP+MAN-1:0] overflowed;
  assign overflowed = (saturate | (inward & !infinite & (BEYOND_INFINITE == 0))) ? LARGEST
                    : (ENCODING == 0) ? INFINITE : QUIET;

  logic is_nan, is_over, is_zero, signed_code;
  assign is_nan = nan | invalid;
  assign is_zero = (magnitude == 0) & !sticky;
  assign is_over = infinite | (!is_zero & beyond);
  assign signed_code = !is_nan & !(is_over & ENCODING != 0 & overflowed == QUIET) & sign;
  assign result = {
    signed_code,
    is_nan ? QUIET : is_over ? overflowed : is_zero ? {(EXP + MAN) {1'b0}} : code[EXP+MAN-1:0]
  };

  logic nx, uf, of;
  assign of = !is_nan & (infinite ? ENCODING != 0 : is_over);
`ifdef MUT_OVERFLOW_IS_EXACT
  assign nx = !is_nan & !infinite & inexact & !is_zero;
`else
  assign nx = of | (!is_nan & !infinite & inexact & !is_zero);
`endif
  assign uf = !is_nan & !infinite & !is_zero & tiny & inexact;
`ifdef MUT_NO_INVALID
  assign flags = {2'b00, of, uf, nx};
`else
  assign flags = {invalid, 1'b0, of, uf, nx};
`endif
endmodule
