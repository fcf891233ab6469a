// One line of dot.hex: $readmemh into logic [BITS-1:0] lines [COUNT].
package dot_pkg;
  localparam int COUNT = 8;
  localparam int BITS = 440;
  typedef struct packed {
    logic [3:0][7:0] a;
    logic [3:0][7:0] b;
    logic [15:0] c;
    logic [15:0] start;  // c, or the first term
    logic [3:0][15:0] product;  // each product, rounded
    logic [3:0][15:0] y;
    logic [3:0][15:0] t;
    logic [3:0][15:0] grown;
    logic [3:0][15:0] compensation;
    logic [15:0] result;
    logic [2:0] flags_pad;
    logic [4:0] flags;
  } line_t;
endpackage : dot_pkg
