# SPDX-License-Identifier: Apache-2.0
"""`Clock`: counts the training steps of a converted model.

The number of the step determines random streams and delayed scales.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cpd._torch.library import ops
from cpd._torch.private import FakeTensor, graph_task, transform_level
from cpd._torch.steps import enroll
from cpd.nn.checkpoints import activation_checkpoint, makes_gradients
from cpd.nn.delayed import Delayed, device_of, parts_of, reduce, tensors
from cpd.nn.ranks import groups_of, resolved
from cpd.numeric.warned import warn

NAME = "cpd_clock"
"""The name of the model's buffer with the step's number. The buffer is not in a submodule, because
a submodule would count as a layer of a Sequential."""

SHIFT = 36
"""The lowest bit of the step's number in the 64-bit number of a random stream. The bits below have
the layer's number, and the position of a product in the layer."""

TRAINING, EVALUATING = 1, 2
"""Bits of `Clock.reached`, set if a backward pass reaches a layer in training or in eval mode."""

PER_RANK = {
    "layer": "delayed scales are not exchanged between ranks where a step begins within a layer's "
    "forward: to exchange them, let all ranks call the model itself",
    "alone": "delayed scales are not exchanged between ranks: neither DDP nor FSDP2 wraps the "
    "model itself; cpd.convert(…, amax_group=…) gives the ranks that exchange them",
}
"""Notes in a report about steps in which ranks did not exchange magnitudes for delayed scales."""

_STREAMS: WeakKeyDictionary[Any, WeakKeyDictionary[Clock, Tensor]] = WeakKeyDictionary()
"""Maps each activation checkpoint that awaits its backward pass to the random stream of each clock.

The stream is of the step in which the checkpoint's forward pass ran."""


class Clock:
    """Counts the steps of a converted model, in an int64 buffer of the model's state_dict.

    A step begins at a call of the model in training mode (`tick`, a forward pre-hook). Outside of
    such a call, a step begins at a layer's forward (`enter`), if a backward pass has reached a
    converted layer since the last step began (`mark`). The layer must have delayed scaling,
    stochastic rounding or a schedule, and gradients must be on. In a model that has not trained
    yet, the first forward in training mode begins the first step. A layer in eval mode begins a
    step only after a backward pass through layers in eval mode. If a layer's forward has begun a
    step, a call of the model before the next backward pass belongs to that step.

    No step begins while a backward pass recomputes activations, or within a transform of
    torch.func. Within a transform, the stream is computed from the buffer that
    torch.func.functional_call gets.

    At a call of the model, the ranks of `amax_group` exchange the magnitudes of the previous step.
    In a layer's forward, which not all ranks may reach, ranks exchange nothing. A call of the model
    updates the scales of all layers. If the model is not called, each layer's scales are updated in
    its next forward.

    All other state is on the host. Compiled programs change it by the operators of
    `cpd._torch.steps`, so they have no guards on this state and no graph breaks.

    Args:
        model: the converted model, in which the clock registers its buffer and its hooks.
        states: the states of the model's layers.
        step: the buffer: the number of the present step.
        amax_group: as for `cpd.convert`; default None.

    Attributes:
        begun: the number of steps that have begun since this object was made.
        reached: the modes of the layers that a backward pass has reached since the step began.
        fresh: True if the first forward in training mode begins a step, without a backward pass.
        trains_in_eval: True if the present step follows a backward pass of layers in eval mode.
        per_rank: the keys of `PER_RANK` for the notes that apply to past steps.
    """

    begun = 0
    reached = 0
    fresh = True
    trains_in_eval = False
    amax_group: str | bool | None = None

    def __init__(
        self,
        model: nn.Module,
        states: Iterable[Any],
        step: Tensor,
        amax_group: str | bool | None = None,
    ) -> None:
        model.register_buffer(NAME, step)
        model.register_forward_pre_hook(self.tick)
        model.register_forward_hook(self.leave, always_call=True)
        model.register_state_dict_pre_hook(restore_clock)  # type: ignore[no-untyped-call]
        model.register_load_state_dict_pre_hook(keep_the_present)  # type: ignore[no-untyped-call]
        self._buffers = model._buffers  # not the model: a layer is copied with its clock
        self._root: Any = ref(model)
        self._states = tuple(states)
        self._delayed = tuple(s.delayed for s in self._states if s.delayed is not None)
        self._scheduled = tuple(s for s in self._states if s.given.schedule)
        self.amax_group = amax_group
        self.per_rank: set[str] = set()
        self._begun_by_layer = False
        self._within: list[bool] = []
        self._lost: Tensor | None = None
        self._warned = False
        self._flag = torch.zeros((), dtype=torch.uint8)  # set by compiled backward passes
        self.key = enroll(self)
        for number, delayed in enumerate(self._delayed):
            for part in (delayed, *delayed.parts()):
                part.clock, part.place = self, number
        for state in self._states:
            state.clock = self
        self._follow(step)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_root": None, "_within": [], "key": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.key = enroll(self)

    @property
    def step(self) -> Tensor:
        """The number of the present step, a one-element int64 tensor."""
        number = self._buffers[NAME]
        assert number is not None
        if self._lost is not None and number is not self._lost and not number.is_meta:
            self._restore(number)
        return number

    def stream(self) -> Tensor:
        """Returns the stream of the present step.

        While an activation checkpoint is recomputed, returns the stream of the checkpoint's step.
        """
        checkpoint = activation_checkpoint()
        if checkpoint is None:
            return self.step << SHIFT
        of_clocks = _STREAMS.setdefault(checkpoint, WeakKeyDictionary())
        if self not in of_clocks:
            of_clocks[self] = self.step << SHIFT
        return of_clocks[self]

    def is_over(self) -> bool:
        """Returns True if the next forward in training mode begins a step."""
        return self.reached != 0 or self.fresh

    def notes(self) -> list[str]:
        """Returns remarks for convert's report if ranks did not exchange largest magnitudes."""
        return [PER_RANK[which] for which in sorted(self.per_rank)]

    # ---- calls of the model --------------------------------------------------------------------

    def tick(self, model: nn.Module, arguments: Any) -> None:
        """The model's forward pre-hook: begins a step."""
        counts = model.training and not self._is_idle()
        if torch.compiler.is_compiling():
            if counts:
                self._tick_compiled()
            return
        self._within.append(counts)
        if counts:
            if self._root is None:  # after unpickling
                self._root = ref(model)
            self.begin_model(self.step, *tensors(self._delayed))

    def _tick_compiled(self) -> None:
        histories, scales = tensors(self._delayed)
        if torch.compiler.is_exporting():
            for part in parts_of(self._delayed):
                part.advance(part.amax_history, part.scale)
            self.step.add_(1)
            return
        ops.begin_model(self.step, histories, scales, self.key)

    def leave(self, model: nn.Module, arguments: Any, output: Any) -> None:
        """The model's forward hook: ends a call of the model, even if the call raised an error."""
        if self._within:  # empty if `tick` was compiled
            self._within.pop()

    @torch.no_grad()
    def begin_model(self, step: Tensor, histories: list[Tensor], scales: list[Tensor]) -> None:
        """Begins a step at a call of the model, unless a layer's forward has begun the step.

        Exchanges magnitudes between ranks, computes the scales of all layers, and increments
        `step`, the clock's buffer with the step's number. `histories` and `scales` are the buffers
        of delayed scaling of all layers, in order.
        """
        self.advance(self._delayed, histories, scales)  # for steps that layers began
        for group in self._groups(step):
            reduce(histories, group)
        joins = self._begun_by_layer and not self.reached
        self._begun_by_layer = False
        if not joins:
            self._begin(step)
            self.advance(self._delayed, histories, scales)

    # ---- forward and backward passes of layers -------------------------------------------------

    def enter(self, state: Any, training: bool) -> None:
        """Runs at the start of a layer's forward: begins a step or updates scales if needed.

        Calls `begin_layer` if this forward may begin a training step, or if the layer's scales
        were last computed for an earlier step.
        """
        delayed = state.delayed
        if torch.compiler.is_compiling():
            self._enter_compiled(state, training)
        elif state.counts and (self._is_due(training) or _is_behind(delayed, self.begun)):
            layers = () if delayed is None else (delayed,)
            place = -1 if delayed is None else delayed.place
            gradients = torch.is_grad_enabled()
            self.begin_layer(self.step, *tensors(layers), place, gradients, training)

    def _enter_compiled(self, state: Any, training: bool) -> None:
        if torch.compiler.is_exporting():
            return
        gradients = torch.is_grad_enabled()
        if gradients and state.given.schedule:
            state.recipe = state.upcoming
        delayed = state.delayed
        if not state.counts or not (gradients or training or delayed is not None):
            return
        histories, scales = tensors(() if delayed is None else (delayed,))
        place = -1 if delayed is None else delayed.place
        ops.begin_layer(self.step, histories, scales, self.key, place, gradients, training)

    @torch.no_grad()
    def begin_layer(
        self,
        step: Tensor,
        histories: list[Tensor],
        scales: list[Tensor],
        place: int,
        gradients: bool,
        training: bool,
    ) -> None:
        """Begins a training step if this layer's forward requires it; updates the layer's scales.

        A step begins if `_is_due` returns True and gradients are on. The layer's scales are
        computed for the present step, unless they already were. `place` is the layer's number among
        the layers with delayed scaling; -1: the layer has no delayed scaling. `histories` and
        `scales` are the layer's buffers. Does nothing if `_is_idle` returns True.
        """
        if self._is_idle():
            return
        if self._is_due(training) and (gradients or makes_gradients()):
            self._begin(step)
            self._begun_by_layer = True
            if self._delayed and self.amax_group is not False and _ranks() > 1:
                self.per_rank.add("layer")
        if place >= 0:
            self.advance((self._delayed[place],), histories, scales)

    def mark(self, y: Any, training: bool) -> Any:
        """Returns a layer's result unchanged. The layer's backward pass will notify the clock."""
        if not torch.is_grad_enabled():
            return y
        if torch.compiler.is_compiling():
            return y if torch.compiler.is_exporting() else _marked(y, self, training)
        reach = self._reach_training if training else self._reach_evaluating
        for x in (y,) if isinstance(y, Tensor) else _tensors_in(y):
            node = x.grad_fn
            if node is not None and not isinstance(x, FakeTensor):
                node.register_prehook(reach)
        return y

    def reach_layer(self, training: bool) -> None:
        """Records that a backward pass has reached a layer in training mode or in eval mode."""
        bit = TRAINING if training else EVALUATING
        if self.reached & bit:
            return
        self.reached |= bit
        for state in self._scheduled:
            state.upcoming = state.ahead

    def _reach_training(self, gradients: Any) -> None:
        self.reach_layer(True)

    def _reach_evaluating(self, gradients: Any) -> None:
        self.reach_layer(False)

    def _is_due(self, training: bool) -> bool:
        """Returns True if a layer's forward in training or eval mode begins a step."""
        if True in self._within:
            return False
        if training:
            return self.is_over()
        return bool(self.reached & EVALUATING)

    def _is_idle(self) -> bool:
        """Returns True if calls must not begin a step now.

        Calls begin no step while a checkpoint recomputes, within transforms of torch.func, and
        while a trace replaces the step's buffer by a fake tensor.
        """
        if torch.compiler.is_compiling():
            return False
        return recomputes_or_transforms() or isinstance(self._buffers[NAME], FakeTensor)

    # ---- what a step's beginning does ----------------------------------------------------------

    def _begin(self, step: Tensor) -> None:
        step.add_(1)
        self.begun += 1
        self.trains_in_eval = bool(self.reached & EVALUATING)
        self.reached, self.fresh = 0, False
        self._follow(step)
        if self.begun == 2 and not self._warned:
            self._warn_of_epochs()

    def advance(
        self, layers: Sequence[Delayed], histories: list[Tensor], scales: list[Tensor]
    ) -> None:
        """Computes scales of `layers` for the present step; updates `histories` and `scales`."""
        with torch.no_grad():
            parts = zip(parts_of(layers), histories, scales, strict=True)
            for part, history, scale in parts:
                if part.seen != self.begun:
                    part.advance(history, scale, self.begun - part.seen)
                    part.seen = self.begun
        for layer in layers:
            layer.seen = self.begun

    def _follow(self, step: Tensor) -> None:
        """Selects the recipes of layers with schedules for the clock's step, counted from 0."""
        if self._scheduled and not step.is_meta and not isinstance(step, FakeTensor):
            number = int(step)
            for state in self._scheduled:
                state.follow(number - 1 if number else 0, number)

    def _warn_of_epochs(self) -> None:
        if any(state.awaits_epochs() for state in self._scheduled):
            self._warned = True
            warn(
                "a recipe's schedule counts epochs, and the model trains in epoch 0 until "
                "cpd.set_step(model, epoch=…) says otherwise: call it as each epoch begins"
            )

    def _groups(self, step: Tensor) -> list[Any]:
        """Returns the groups of ranks that exchange largest magnitudes when the model is called."""
        if not self._delayed or self.amax_group is False or _ranks() <= 1:
            return []
        if isinstance(self.amax_group, str):
            return [resolved(self.amax_group)]
        model = None if self._root is None else self._root()
        groups = [] if model is None else groups_of(model)
        if not groups:
            self.per_rank.add("alone")
        return groups

    # ---- the buffer ----------------------------------------------------------------------------

    def set(self, number: int) -> None:
        """Sets the number of the present step to `number`.

        The next forward in training mode begins the next step.
        """
        self.step.fill_(number)
        self.fresh = True
        self._follow(self.step)

    def loaded(self, step: Tensor) -> None:
        """Records that load_state_dict has set the step's number.

        The next forward with gradients begins a step.
        """
        self._lost = None
        self.reached, self.fresh = TRAINING | EVALUATING, True
        self._follow(step)

    def before_apply(self, function: Any) -> None:
        """Saves the step's number if `function` would lose the number in the clock's buffer.

        The function of `to_empty`, for example, loses the values of tensors.
        """
        step = self._buffers[NAME]
        if self._lost is not None or step is None or isinstance(step, FakeTensor):
            return
        if step.is_meta:
            self._lost = step
            return
        probe = torch.tensor(_PROBE, device=step.device)
        applied = function(probe)
        if applied.is_meta or applied.dtype != probe.dtype or int(applied) != _PROBE:
            self._lost = step

    def _restore(self, number: Tensor) -> None:
        """Writes the saved number of the step to the buffer after `to_empty`.

        Writes 0 if the model was on the meta device.
        """
        lost, self._lost = self._lost, None
        assert lost is not None
        with torch.no_grad():
            if lost.is_meta:
                number.zero_()
            else:
                number.copy_(lost)


_PROBE = 0x5AC3_96E1_3C69_A50F
"""A test value: a function that loses values is unlikely to return a tensor with this value."""


def _is_behind(delayed: Delayed | None, begun: int) -> bool:
    return delayed is not None and delayed.seen != begun


def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _tensors_in(values: Any) -> Iterable[Tensor]:
    """Yields the tensors in a layer's result, which may be nested tuples, lists or dicts."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors_in(value)
    elif isinstance(values, dict):
        yield from _tensors_in(tuple(values.values()))


class _Mark(torch.autograd.Function):
    """The identity function. In a compiled program, its backward pass notifies a clock."""

    @staticmethod
    def forward(y: Tensor, flag: Tensor, clock: int, training: bool) -> Tensor:
        return y.detach()  # not a view to autograd: later code may change it in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.flag, ctx.clock, ctx.training = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        ops.reach_layer(ctx.flag, ctx.clock, ctx.training)
        return grad, None, None, None


_BACKWARD_REPORTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
"""True if a compiled backward pass can notify a clock: from torch 2.12 on. The operator that
notifies also writes a flag, and torch 2.11 removes this write from the compiled program."""


def _marked(y: Any, clock: Clock, training: bool) -> Any:
    """Returns a layer's result unchanged in a compiled program.

    The layer's backward pass will notify the clock.

    Raises RuntimeError if torch is too old for such a notification. Without fullgraph=True torch
    then runs the layer eagerly.
    """
    if not _BACKWARD_REPORTS:
        raise RuntimeError(
            f"torch.compile of converted layers needs torch 2.12 or newer, this is "
            f"{torch.__version__}: steps would not be counted"
        )
    if isinstance(y, Tensor):
        if not y.requires_grad:
            return y
        function: Any = _Mark
        return function.apply(y, clock._flag, clock.key, training)
    if type(y) in (tuple, list):
        return type(y)([_marked(value, clock, training) for value in y])
    if type(y) is dict:
        return {name: _marked(value, clock, training) for name, value in y.items()}
    return y


def keep_the_present(
    model: nn.Module, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any
) -> None:
    """A hook of load_state_dict: preserves the step's number if `state_dict` does not contain one.

    The state_dict of an unconverted model contains none.
    """
    clock = clock_of(model)
    if clock is None:
        return
    name = prefix + NAME
    if name in state_dict:
        state_dict[name] = state_dict[name].to(torch.int64)
        clock.loaded(state_dict[name])
        return
    step = clock.step
    if step.is_meta and local_metadata.get("assign_to_params_buffers"):
        device = device_of(state_dict, prefix)
        step = step if device is None else torch.zeros_like(step, device=device)
        clock._lost = None
    state_dict[name] = step


def restore_clock(model: nn.Module, *rest: Any) -> None:
    """A hook of state_dict: restores the clock's number if `to_empty` lost it."""
    clock = clock_of(model)
    if clock is not None:
        clock.step  # noqa: B018


def recomputes_or_transforms() -> bool:
    """Returns True within a backward pass or torch.func transform, except in a compiled program."""
    if torch.compiler.is_compiling():
        return False
    in_backward: int = graph_task()
    return in_backward != -1 or transform_level() is not None


def clock_of(model: nn.Module) -> Clock | None:
    """Returns the clock of `model`, or None."""
    hooks = model._forward_pre_hooks.values()
    owners = (getattr(hook, "__self__", None) for hook in hooks)
    return next((owner for owner in owners if isinstance(owner, Clock)), None)


def detach(model: nn.Module) -> None:
    """Removes the clock of `model`, if it has one."""
    clock = clock_of(model)
    if clock is None:
        return
    del model._buffers[NAME]
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for number, hook in list(hooks.items()):
            if getattr(hook, "__self__", None) is clock:
                del hooks[number]
                model._forward_hooks_always_called.pop(number, None)
    for number, hook in list(model._load_state_dict_pre_hooks.items()):
        if getattr(hook, "hook", None) is keep_the_present:
            del model._load_state_dict_pre_hooks[number]
    for number, hook in list(model._state_dict_pre_hooks.items()):
        if hook is restore_clock:
            del model._state_dict_pre_hooks[number]
