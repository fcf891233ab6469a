// SPDX-License-Identifier: Apache-2.0
//
// Integer multiply-accumulate: c plus the sum of a[k] * b[k], in two's complement of WIDTH bits. A
// sum beyond the range after any product wraps around; with SATURATE it becomes the nearest end of
// the range.
module int_mac #(
    parameter int PRODUCTS = 1,
    parameter int BITS = 8,
    parameter int WIDTH = 32,
    parameter bit SATURATE = 0
) (
    input  logic [PRODUCTS*BITS-1:0] a,
    input  logic [PRODUCTS*BITS-1:0] b,
    input  logic [WIDTH-1:0] c,
    output logic [(PRODUCTS+1)*WIDTH-1:0] term,
    output logic [(PRODUCTS+1)*WIDTH-1:0] sum,
    output logic [WIDTH-1:0] result,
    output logic [4:0] flags
);
  // One bit wider than the wider of a sum and a product.
  localparam int EXACT = (WIDTH > 2 * BITS ? WIDTH : 2 * BITS) + 1;

  logic signed [WIDTH-1:0] kept;
  logic signed [2*BITS-1:0] product;
  logic signed [EXACT-1:0] addend, exact;
  logic beyond;

  always_comb begin
    kept = c;
    term = '0;
    sum = '0;
    term[WIDTH-1:0] = c;
    sum[WIDTH-1:0] = c;
    flags = '0;
    product = '0;
    addend = '0;
    exact = '0;
    beyond = 1'b0;
    for (int k = 0; k < PRODUCTS; k++) begin
      product = $signed(a[k*BITS+:BITS]) * $signed(b[k*BITS+:BITS]);
      addend = EXACT'(product);
      exact = EXACT'(kept) + addend;
      beyond = exact[EXACT-1:WIDTH-1] != {(EXACT - WIDTH + 1) {exact[EXACT-1]}};
      kept = SATURATE && beyond ? {exact[EXACT-1], {(WIDTH - 1) {~exact[EXACT-1]}}} : exact[WIDTH-1:0];
      term[(k+1)*WIDTH+:WIDTH] = addend[WIDTH-1:0];
      sum[(k+1)*WIDTH+:WIDTH] = kept;
      if (beyond) flags = 5'b00101;  // OF, NX
    end
    result = kept;
  end
endmodule
