# SPDX-License-Identifier: Apache-2.0
"""Explains calls on torch tensors, and converted layers (`cpd.explain`).

The call runs on torch's fake tensors, which have shapes but no memory. Each operator of this
library in the call is called with tensors of the device `meta`. Because the thread is explaining,
the operator checks its arguments, records its plan and computes nothing.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,attr-defined"

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from cpd import _core
from cpd._torch.private import (
    CPU_KEYS,
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    modes_off,
)
from cpd._torch.table import TABLE
from cpd.ops.explain import PRODUCTS, Explanation, explanation, step_of

_NATIVE = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
"""Torch's own products."""


def explain(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    """Returns which kernels a call of a function or a converted layer on tensors would run."""
    with _Recorder().recording() as recorder:
        if isinstance(function, nn.Module):
            return _of_layer(recorder, function, args, kwargs)
        if isinstance(function, type):
            raise TypeError(f"explain takes a layer, not its class, got {function.__name__}")
        fake_args, named = recorder.fakes((args, kwargs))
        if not function.__module__.startswith("cpd.nn."):
            function(*fake_args, **named)
            return explanation(recorder.steps)
        leaves, spec = tree_flatten((fake_args, named))
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
        places, others = tensors[:2], tensors[2:]
        required = [leaves[i].requires_grad for i in places]
        for i in others:
            leaves[i] = leaves[i].detach()  # the gradient of a bias is not a product

        def run(needs: tuple[bool, bool]) -> tuple[Tensor, list[Tensor]]:
            for place, need in zip(places, needs, strict=False):
                leaves[place] = leaves[place].detach().requires_grad_(need)
            again, keywords = tree_unflatten(leaves, spec)
            return function(*again, **keywords), [leaves[i] for i in places]

        return _of_products(recorder, run, (required[0], required[1]))


def _of_layer(
    recorder: _Recorder, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Explanation:
    state = _state(layer)
    if not hasattr(state, "recipe"):
        within = [name for name, part in layer.named_modules() if hasattr(_state(part), "recipe")]
        way = f"; explain its layers, such as {within[0]!r}" if within else ""
        raise TypeError(
            f"explain takes a layer that cpd.convert has converted, got {type(layer).__name__}{way}"
        )
    if not isinstance(getattr(layer, "weight", None), Tensor):
        raise TypeError(
            f"explain takes layers that are one product, got {_name(layer)}; explain "
            "cpd.functional.linear and matmul with the shapes and the recipe of its products"
        )
    fake_args, named = recorder.fakes((args, kwargs))
    if not fake_args or not isinstance(fake_args[0], Tensor):
        raise TypeError("explain takes a layer and its input, a tensor")
    copied = recorder.copied(layer)
    for kind, parameter in copied._parameters.items():
        copied._parameters[kind] = None if parameter is None else parameter.detach()

    def run(needs: tuple[bool, bool]) -> tuple[Tensor, list[Tensor]]:
        x = fake_args[0].detach().requires_grad_(needs[0])
        weight = copied._parameters["weight"].detach().requires_grad_(needs[1])
        copied._parameters["weight"] = weight
        return type(layer).forward(copied, x, *fake_args[1:], **named), [x, weight]

    return replace(_of_products(recorder, run, (True, True)), name=_name(layer))


def _state(layer: nn.Module) -> Any:
    return layer.__dict__.get("cpd")


def _name(layer: nn.Module) -> str:
    return type(layer).__name__.removeprefix("Emulated")


def _of_products(
    recorder: _Recorder,
    run: Callable[[tuple[bool, bool]], tuple[Tensor, list[Tensor]]],
    required: tuple[bool, bool],
) -> Explanation:
    """Returns the explanation of a product and of the gradients of its operands.

    `run` gets a pair of bools: whether each operand requires a gradient. `run` computes the product
    and returns the result and the operands. `required` is the pair for the explained call.
    """

    def steps_of(needs: tuple[bool, bool]) -> tuple[list[Explanation], list[Explanation]]:
        recorder.steps = []
        result, operands = run(needs)
        forward, recorder.steps = recorder.steps, []
        needed = [x for x, need in zip(operands, needs, strict=True) if need]
        if needed:
            torch.autograd.grad(result, needed, torch.ones_like(result))
        return forward, recorder.steps

    forward, backward = steps_of(required)
    products = [replace(step, name="forward") for step in _products(forward)]
    for name, needs in (("grad_input", (True, False)), ("grad_weight", (False, True))):
        if required[needs.index(True)]:
            products += [replace(step, name=name) for step in _products(steps_of(needs)[1])]
    return explanation((*forward, *backward), tuple(products))


def _products(steps: list[Explanation]) -> list[Explanation]:
    return [step for step in steps if step.name in PRODUCTS]


class _Still:
    """Stands in for a layer's clock during `cpd.explain`, so that no training step begins."""

    def enter(self, state: Any, training: bool) -> None:
        """Does nothing, so that no step begins."""

    def mark(self, y: Any, training: bool) -> Any:
        """Returns the layer's result, `y`, unchanged."""
        return y

    def stream(self) -> Tensor:
        """Returns the stream 0, because an explanation does not depend on the stream."""
        return torch.zeros((), dtype=torch.int64)


class _Recorder(TorchDispatchMode):
    """A mode of torch that records the plans of operators in `steps`.

    Tensors that are created within the mode are fake.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Explanation] = []
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    @contextmanager
    def recording(self) -> Iterator[_Recorder]:
        """A context that records which kernel each called operator would run."""
        with self._fake, self:
            yield self

    def fakes(self, values: Any) -> Any:
        """Replaces tensors in nested values by fake tensors.

        The fake tensor of a `meta` tensor is on the CPU.
        """
        return tree_map(self._fake_of, values)

    def _fake_of(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, FakeTensor):
            return x
        if not x.is_meta:
            return self._fake.from_tensor(x)
        fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")
        return fake.requires_grad_(x.requires_grad)

    def copied(self, layer: nn.Module) -> Any:
        """Returns a copy of a layer with fake parameters and buffers.

        Its clock does not advance.
        """
        known: dict[int, Any] = {}

        def copy(module: nn.Module) -> Any:
            if id(module) in known:
                return known[id(module)]
            clone = known[id(module)] = object.__new__(type(module))
            clone.__dict__.update(module.__dict__)
            for kind in ("_parameters", "_buffers"):
                clone.__dict__[kind] = {
                    k: self._fake_of(x) for k, x in getattr(module, kind).items()
                }
            clone.__dict__["_modules"] = {
                k: None if child is None else copy(child) for k, child in module._modules.items()
            }
            if clone.__dict__.get("clock") is not None:
                clone.__dict__["clock"] = _Still()
            return clone

        clone = copy(layer)
        original: Any = layer.cpd
        state = object.__new__(type(original))
        state.__dict__.update(original.__dict__)
        state.clock = None if state.clock is None else _Still()
        state.delayed = None if state.delayed is None else copy(state.delayed)
        clone.__dict__["cpd"] = state
        return clone

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Records which kernel an operator would run, and returns fake results."""
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if func.namespace == "aten" and name in _NATIVE:
            self.steps.append(_native(name, args))
        if func.namespace != "cpd":
            return func(*args, **kwargs)
        row = TABLE.get(name)
        computes = None if row is None else row.computes
        if computes is None:
            return self._noted(func, args, kwargs)
        with self:
            return computes(*args, **kwargs)

    def _noted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records which kernel an operator of this library would run; returns fake results."""
        like = next(x for x in args if isinstance(x, Tensor))
        scope = _core.Explaining(like.device.index or 0 if like.is_cuda else -1)
        with modes_off():
            bare_args, named = tree_map(_without_memory, (args, kwargs))
            scope.enter()
            try:
                result = func.redispatch(CPU_KEYS, *bare_args, **named)
            finally:
                noted = scope.exit()
        self.steps += [step_of(step) for step in noted]
        return tree_map(lambda x: _like(x, like.device), result)


def _without_memory(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _like(x: Any, device: torch.device) -> Any:
    """Replaces a tensor of device `meta` by a fake tensor on `device`."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def _native(name: str, args: tuple[Any, ...]) -> Explanation:
    """Returns the `Explanation` for a product that torch's own kernel computes."""
    x = next(arg for arg in args if isinstance(arg, Tensor))
    threads = 1 if x.is_cuda else torch.get_num_threads()
    why = "the sum is native: torch chooses its kernel"
    return Explanation("native_product", "torch", f"aten.{name}", "native", (), threads, why)
