// SPDX-License-Identifier: Apache-2.0
//
// Declares the DPI functions of libcpd, which cpd/oracle/dpi.h documents. Link the simulation with
// libcpd.
package cpd_dpi;
  import "DPI-C" function int cpd_dpi_rule(
    input string operation,
    input string operand,
    input string result,
    input string rounding,
    input int random_bits
  );
  import "DPI-C" function int cpd_dpi_compute(
    input int rule,
    input int unsigned a,
    input int unsigned b,
    input int unsigned c,
    input int unsigned r,
    output int unsigned result,
    output int unsigned flags
  );
  import "DPI-C" function int cpd_dpi_dot(
    input string operand,
    input string accumulator,
    input int length
  );
  import "DPI-C" function int cpd_dpi_set(
    input int dot,
    input int k,
    input int unsigned a,
    input int unsigned b
  );
  import "DPI-C" function int cpd_dpi_set_scales(
    input int dot,
    input int block,
    input int unsigned a_scale,
    input int unsigned b_scale
  );
  import "DPI-C" function int cpd_dpi_sum(
    input int dot,
    input int unsigned c,
    output int unsigned result,
    output int unsigned flags
  );
  import "DPI-C" function string cpd_dpi_error();
endpackage
