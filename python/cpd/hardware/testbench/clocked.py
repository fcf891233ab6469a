# SPDX-License-Identifier: Apache-2.0
"""Makes the SystemVerilog that drives a module with a clock.

It resets the module, applies lines (test vectors) with gaps, applies back-pressure and reads
results.
"""

from __future__ import annotations

from cpd.hardware.testbench.ports import Ports

_PATIENCE = 10000
"""The number of clock cycles without progress after which a bench gives up."""
_SEARCHED = 32
"""After a failure, the bench tests latencies up to this many cycles from the given latency."""
_SILENCE = 64
"""After the last result, the bench watches at least this many cycles for surplus results."""
_EARLIER, _LATER = 4, 8
"""To find lost or surplus results, the bench also compares each result with the results expected
for the `_EARLIER` preceding and the `_LATER` following test vectors."""
_MOVES = 4
"""The largest number of lost or surplus results that a bench prints."""

_STATE = """\
  localparam int LATENCY = {latency};
  localparam int INTERVAL = {interval};
  localparam int GAPS = {gaps};
  localparam int MOST_GAPS = {most_gaps};
  localparam int PATIENCE = {patience};
  logic clock, valid_in, valid_out, ready_in, ready_out;
  logic offered, taken, came, draining, over;
  logic [31:0] random;
  integer cycle, sent, since, idle, longest, drained, gap_in, gap_out;
"""

_DRIVE = """\
  // Numbers that are the same in every simulator; +seed=N gives others.
  task next_random;
    random = random ^ (random << 13);
    random = random ^ (random >> 17);
    random = random ^ (random << 5);
  endtask

  // The percentage of cycles without a line, or without ready, for the next 64 cycles.
  function integer gaps_of(input logic [1:0] choice);
    gaps_of = choice == 0 ? 0 : choice == 3 ? MOST_GAPS : GAPS;
  endfunction

  // The inputs of a cycle, while the clock is low.
  task drive;
    next_random;
    if (cycle % 64 == 0) begin
      gap_in = gaps_of(random[1:0]);
      gap_out = gaps_of(random[3:2]);
      next_random;
    end
    draining = sent > last && done > last;
    if (!offered) offered = sent <= last && since >= INTERVAL && random[15:0] % 100 >= gap_in;
    ready_out = {ready_out};
    valid_in = offered;
    next_random;
    if (offered) vector = vectors[sent];
{idle_inputs}  endtask
"""

_START = """\
    clock = 0;
    valid_in = 0;
    ready_out = 0;
    offered = 0;
    vector = vectors[first];
    if (!$value$plusargs("seed=%d", random)) random = 0;
    random = (random ^ 32'h2545f491) | 32'h40000000;
    cycle = 0;
    sent = first;
    since = INTERVAL;
    idle = 0;
    longest = 0;
    drained = 0;
    over = 0;
{start}{reset}
    while (!over) begin
      drive;
      #1;
      taken = offered && ready_in === 1'b1;
{edge}
      since = taken ? 1 : since + 1;
      if (taken) offered = 0;
      idle = taken || came ? 0 : idle + 1;
      if (idle > longest && !draining) longest = idle;
      if (draining) begin
        drained = drained + 1;
        over = drained >= {silence};
      end else over = idle >= PATIENCE || (stop != 0 && failures + nans >= stop);
      cycle = cycle + 1;
    end
    if (done <= last && (stop == 0 || failures + nans < stop)) begin
      failures = failures + last - done + 1;
{missing}    end
{end}"""

_RESET = """\
    reset = 1'b{idle};
    #1 reset = 1'b{level};
    #1;
    repeat ({cycles}) begin
      clock = 1;
      #1 clock = 0;
      #1;
    end
    reset = 1'b{idle};
"""

_FIXED_STATE = """\
  // line_at: the line that the module accepted in each of the last cycles. matching: bit d is 1
  // while all results so far match with a latency of d cycles.
  localparam int LOWEST = {lowest};
  localparam int HIGHEST = {highest};
  integer line_at[0:HIGHEST-1];
  logic [HIGHEST:1] matching;
  integer d, n;
"""

_FIXED_START = """\
    for (i = 0; i < HIGHEST; i = i + 1) line_at[i] = -1;
    for (d = 1; d <= HIGHEST; d = d + 1) matching[d] = d >= LOWEST;
"""

_FIXED_EDGE = """\
      line_at[cycle % HIGHEST] = taken ? sent : -1;
      if (taken) sent = sent + 1;
      clock = 1;
      #1;
      came = 0;
      if (cycle - LATENCY + 1 >= 0) begin
        n = line_at[(cycle - LATENCY + 1) % HIGHEST];
        if (n >= 0) begin
          compare(n);
          came = 1;
          done = n + 1;
        end
      end
      if (failures != 0 || cycle < {always})
        for (d = LOWEST; d <= HIGHEST; d = d + 1)
          if (matching[d] && cycle - d + 1 >= 0) begin
            n = line_at[(cycle - d + 1) % HIGHEST];
            if (n >= 0) begin
              load(n);
              if ({wrong}) matching[d] = 0;
            end
          end
      clock = 0;"""

_FIXED_END = """\
    n = 0;
    for (d = HIGHEST; d >= LOWEST; d = d - 1) if (matching[d]) n = d;
    if (failures != 0 && n != 0 && n != LATENCY)
      $display("results match with latency %0d: --latency %0d", n, n);
"""

_STREAM_STATE = """\
  // For each shift s: streak is the number of successive results that equal the result of the line
  // s lines later, begun is the first of them, and against is how many of them were wrong.
  localparam int EARLIER = {earlier};
  localparam int LATER = {later};
  integer streak[0:EARLIER+LATER], begun[0:EARLIER+LATER], against[0:EARLIER+LATER];
  integer s, n, suspicion, moved, moves, results, extra, late, unknown_controls, unstable;
  logic stalled;
  logic [{held}:0] stalled_outputs;

  task result_came;
    results = results + 1;
    if (done >= sent) extra = extra + 1;
    else begin
      compare(done);
      if (wrong) suspicion = 64;
      else if (suspicion != 0) suspicion = suspicion - 1;
      if (suspicion != 0 && moves < {most_moves}) find_shift;
      done = done + 1;
    end
  endtask

  // Finds out if the results are now those of shifted lines: a result was lost or came twice.
  task find_shift;
    moved = 0;
    for (s = -EARLIER; s <= LATER; s = s + 1)
      if (s != 0) begin
        n = s + EARLIER;
        same = 0;
        if (done + s >= first && done + s < sent) begin
          load(done + s);
          same = !({wrong});
        end
        if (!same || suspicion == 1) streak[n] = 0;
        else begin
          if (streak[n] == 0) begin
            begun[n] = done;
            against[n] = 0;
          end
          streak[n] = streak[n] + 1;
          if (wrong) against[n] = against[n] + 1;
          if (streak[n] >= 8 && against[n] >= 2 && (moved == 0 || s * s < moved * moved)) moved = s;
        end
      end
    if (moved != 0) begin
      n = moved + EARLIER;
      failures = failures - against[n];
      shown = shown - (against[n] < shown ? against[n] : shown);
      if (moved > 0) begin
        failures = failures + moved;
        $display("line %0d is lost: from here on each result is that of the line %0d later",
                 begun[n] + 1, moved);
      end else begin
        extra = extra - moved;
        $display("line %0d: a result too many: from here on each is that of the line %0d earlier",
                 begun[n] + 1, -moved);
        $display("  (or {valid_out} is 1 before the result is there)");
      end
      done = done + moved;
      moves = moves + 1;
      suspicion = 0;
      for (s = 0; s <= EARLIER + LATER; s = s + 1) streak[s] = 0;
    end
  endtask
"""

_STREAM_START = """\
    for (s = 0; s <= EARLIER + LATER; s = s + 1) streak[s] = 0;
    suspicion = 0;
    moves = 0;
    results = 0;
    extra = 0;
    late = 0;
    unknown_controls = 0;
    unstable = 0;
    stalled = 0;
"""

_STREAM_EDGE = """\
      came = valid_out === 1'b1 && ready_out;
      if (^{{ready_in, valid_out}} === 1'bx) unknown_controls = unknown_controls + 1;
      if (draining && valid_out === 1'b1) late = late + 1;
{stable}      if (taken) sent = sent + 1;
      if (came) result_came;
      clock = 1;
      #1 clock = 0;"""

_STABLE = """\
      if (stalled && (valid_out !== 1'b1 || {{{outputs}}} !== stalled_outputs)) begin
        unstable = unstable + 1;
        if (unstable == 1)
          $display("line %0d: {valid_out} or the result changes while {ready_out} is 0", done + 1);
      end
      stalled = valid_out === 1'b1 && !ready_out;
      stalled_outputs = {{{outputs}}};
"""

_NO_RESULT = """\
      {otherwise}$display("line %0d: no result in %0d cycles", done + 1, PATIENCE);
"""

_NOT_TAKEN = """\
      if (sent == done)
        $display("line %0d: not taken in %0d cycles: {ready_in} is not 1", done + 1, PATIENCE);
"""

_STREAM_MISSING = """\
      if (results == 0) $display("{hint}");
      else if (sent != done)
        $display("%0d lines were taken and have no result: lost, or the module hangs{busy}",
                 sent - done);
"""

_STREAM_END = """\
    if (extra != 0 && drained != 0 && late == drained)
      $display("{valid_out} never falls: it is 1 in all %0d cycles after the last result", drained);
    else if (extra != 0)
      $display("%0d results too many: {valid_out} is 1 where no result is due", extra);
    if (unstable != 0)
      $display("%0d times {valid_out} or the result changes before it is taken", unstable);
    problems = extra + unstable;
"""

_UNKNOWN = """\
    if (unknown_controls != 0) begin
      $display("{names} is X or Z in %0d cycles after the reset", unknown_controls);
      problems = problems + unknown_controls;
    end
"""


def state(ports: Ports, wrong: str, outputs: str, bits: int) -> str:
    """Returns the declarations and tasks of a bench with a clock.

    `wrong` is the condition of a wrong result. `outputs` are the nets, with `bits` bits in all,
    that must not change under back-pressure.
    """
    gaps = ports.percent
    parts = [
        _STATE.format(
            latency=ports.latency,
            interval=ports.interval,
            gaps=gaps,
            most_gaps=min(3 * gaps, 90),
            patience=max(_PATIENCE, 2 * (ports.interval + ports.latency)),
        )
    ]
    if ports.reset is not None:
        parts.append("  logic reset;\n")
    if ports.ready_in is None:
        parts.append("  assign ready_in = 1'b1;\n")
    junk = "    else vector = vectors[random % COUNT];\n" if ports.valid_in is not None else ""
    ready = "1" if ports.ready_out is None else "draining || random[31:16] % 100 >= gap_out"
    parts.append("\n" + _DRIVE.format(idle_inputs=junk, ready_out=ready))
    if ports.valid_out is None:
        lowest, highest = max(1, ports.latency - _SEARCHED), ports.latency + _SEARCHED
        parts.append("\n" + _FIXED_STATE.format(lowest=lowest, highest=highest))
    else:
        stream = _STREAM_STATE.format(
            earlier=_EARLIER,
            later=_LATER,
            most_moves=_MOVES,
            held=bits - 1,
            wrong=wrong,
            valid_out=ports.valid_out,
        )
        parts.append("\n" + stream)
    return "".join(parts)


def run(ports: Ports, wrong: str, outputs: str) -> str:
    """Returns the statements that reset the module, apply vectors and print protocol errors."""
    stream = ports.valid_out is not None
    if stream:
        stable = ""
        if ports.ready_out is not None:
            names = {"valid_out": ports.valid_out, "ready_out": ports.ready_out}
            stable = _STABLE.format(outputs=outputs, **names)
        edge = _STREAM_EDGE.format(stable=stable)
    else:
        edge = _FIXED_EDGE.format(wrong=wrong, always=ports.latency + 1024)
    return _START.format(
        start=_STREAM_START if stream else _FIXED_START,
        reset=_reset(ports),
        edge=edge,
        silence=f"{_SILENCE} + INTERVAL + longest" if stream else _SEARCHED + 1,
        missing=_missing(ports),
        end=_end(ports) if stream else _FIXED_END,
    )


def _reset(ports: Ports) -> str:
    if ports.reset is None:
        return ""
    level = ports.reset_level
    return _RESET.format(level=level, idle=1 - level, cycles=ports.reset_cycles)


def _missing(ports: Ports) -> str:
    text = ""
    if ports.ready_in is not None:
        text += _NOT_TAKEN.format(ready_in=ports.ready_in)
    text += _NO_RESULT.format(otherwise="else " if text else "")
    if ports.valid_out is None:
        return text
    if ports.reset is None:
        hint = "  no result at all: a module with a reset needs --reset PORT"
    else:
        level = ports.reset_level
        hint = (
            f"  no result at all: {ports.reset} resets at {level}; if it resets at {1 - level}, "
            f"give --reset-level {1 - level}"
        )
    busy = "" if ports.ready_in is not None else " (a line each N cycles: --interval N)"
    return text + _STREAM_MISSING.format(hint=hint, busy=busy)


def _end(ports: Ports) -> str:
    text = _STREAM_END.format(valid_out=ports.valid_out)
    if ports.reset is not None:
        names = [name for name in (ports.ready_in, ports.valid_out) if name is not None]
        text += _UNKNOWN.format(names=" or ".join(names))
    return text
