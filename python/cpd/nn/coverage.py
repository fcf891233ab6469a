# SPDX-License-Identifier: Apache-2.0
"""Counts which products of a training step ran emulated: `Census`. The result is a `Coverage`."""

# Relaxes mypy's checks: torch's dispatch modes and graphs have no type annotations.
# mypy: disable-error-code="no-untyped-call,no-any-return,untyped-decorator"

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._dynamo.comptime import comptime
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.variables import BaseListVariable, ConstDictVariable, TensorVariable
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map_only

from cpd._torch.private import (
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    at_end_of_backward,
    autograd_node,
    get_eval_frame_callback,
)
from cpd.nn.arguments import watchers
from cpd.nn.clock import recomputes_or_transforms
from cpd.nn.converted.state import State
from cpd.nn.coverage_result import Coverage as Coverage
from cpd.nn.coverage_result import Products as Products
from cpd.nn.notes import name_of
from cpd.nn.products import is_ours, macs
from cpd.nn.products import name_of as operation_name
from cpd.nn.recipe import Recipe
from cpd.numeric.warned import PrecisionWarning, warn

WARN_BELOW = 0.9
"""The share of emulated multiply-accumulates below which a model's first training step warns, by
default."""


# ---- counting ------------------------------------------------------------------------------------


class Counter(TorchDispatchMode):
    """Counts the products of one training step of a model, at the level of torch's dispatcher.

    A product of the backward pass belongs to the innermost module whose forward made the autograd
    node. The backward pass enters this dispatch mode for each node. Recomputation under activation
    checkpointing is not counted. Compiled submodules run eagerly in the counted step.

    A step is a call of the model, or calls of its submodules up to the end of a backward pass. Code
    between calls of submodules is not counted.
    """

    supports_higher_order_operators = True
    paused: ClassVar[int] = 0

    def __init__(self, model: nn.Module, done: Callable[[], None]) -> None:
        super().__init__()
        self.modules = dict(model.named_modules())
        self._names = {id(module): name for name, module in self.modules.items()}
        self._done = done
        self._counts: dict[tuple[str, str, bool, str], list[int]] = {}
        self._recipes: dict[tuple[str, str], str] = {}
        self._called: set[str] = set()
        self._within: list[str] = []
        self._nodes: list[str] = []
        self._ascribed: dict[Any, None] = {}
        self._handles: list[Any] = []
        self._calls: Recipe | None = None
        self._creates_graph = False
        self._eager = _Eagerly()
        self.failed = self.reached = False

    @property
    def is_open(self) -> bool:
        """True during a call of the model or of a submodule."""
        return bool(self._within)

    # ---- the forward pass ----

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Starts counting a call of the model or a submodule, in the last forward pre-hook.

        Counting stops as the call ends.
        """
        for submodule in self.modules.values():
            after = submodule.register_forward_hook(
                self._leave_module, with_kwargs=True, always_call=True
            )
            before = submodule.register_forward_pre_hook(self._enter_module, with_kwargs=True)
            self._handles += [after, before]
        for node in self._new_nodes((args, kwargs)):  # nodes made before the model
            del node
        self._enter_module(module, (), {})
        watchers.append(self._note)
        self._eager.__enter__()
        self.__enter__()

    def _enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._within:
            self._watch((args, kwargs), self._within[-1])
        name = self._names[id(module)]
        self._within.append(name)
        self._called.add(name)

    def _leave_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        name = self._names[id(module)]
        try:
            self._watch(output, name)
        finally:
            while self._within and self._within.pop() != name:
                pass  # modules that raised before their hooks were called
            if not self._within:
                self._leave_outermost(name, output)

    def _leave_outermost(self, name: str, output: Any) -> None:
        """Stops counting products until the next call of a submodule, or the backward pass."""
        self.failed = output is None
        if not name or self.failed:
            self._ascribed.clear()
        self._unhook()
        self.__exit__(None, None, None)
        self._eager.__exit__(None, None, None)

    def _watch(self, values: Any, name: str) -> None:
        """Assigns to a module the autograd nodes of `values` that no module has yet."""
        for node in self._new_nodes(values):
            if _WITHOUT_PRODUCTS.fullmatch(type(node).__name__):
                continue
            node.register_prehook(functools.partial(self._enter_node, name))
            node.register_hook(self._leave_node)

    def _new_nodes(self, values: Any) -> Iterator[Any]:
        waiting = [x.grad_fn for x in tensors_in(values) if x.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node in self._ascribed or type(node).__name__ == "AccumulateGrad":
                continue
            self._ascribed[node] = None
            yield node
            waiting += [following for following, _ in node.next_functions if following is not None]

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        watchers[:] = [watch for watch in watchers if watch != self._note]

    # ---- the backward pass: the engine restores the modes of its thread after each node ----

    def _enter_node(self, name: str, *grads: Any) -> None:
        if not self.reached:
            self.reached = True
            self._creates_graph = torch.is_grad_enabled()
            at_end_of_backward(self._done)
        self._nodes.append(name)
        if len(self._nodes) == 1:
            self.__enter__()

    def _leave_node(self, *grads: Any) -> None:
        self._nodes.pop()
        if not self._nodes:
            self.__exit__(None, None, None)

    # ---- both ----

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        number = macs(func, args, keywords, result)
        if number is not None:
            self._count(func, args, number)
        return result

    def _count(self, func: Any, args: Sequence[Any], number: int) -> None:
        if Counter.paused or (self._nodes and torch.is_grad_enabled() and not self._creates_graph):
            return  # in an observer or a recomputation
        module = self._nodes[-1] if self._nodes else self._within[-1]
        recipe = self._recipe(module, func, args)
        key = module, operation_name(func), bool(self._nodes), recipe
        count = self._counts.setdefault(key, [0, 0])
        count[0] += number
        count[1] += 1

    def _recipe(self, module: str, func: Any, args: Sequence[Any]) -> str:
        """Returns the name or text of the recipe that computes a product.

        Returns "" if torch computes the product.
        """
        text = _text_of_node()
        if text is None and is_ours(func):
            text = _text_of(func, args)
        if text is None:
            return ""
        if self._calls is not None:
            self._recipes[module, text], self._calls = _described(self._calls), None
        return self._recipes.get((module, text), text)

    def _note(self, recipe: Recipe) -> None:
        """Stores the recipe of the operator that is called next, to count the call's products."""
        self._calls = recipe

    def end(self) -> Coverage:
        """Returns the counts."""
        self._ascribed.clear()
        self._unhook()
        products = tuple(Products(*key, *count) for key, count in self._counts.items())
        of_modules = {
            name: weights(self.modules[name]) for name in {product.module for product in products}
        }
        every = {id(p): p.numel() for of_module in of_modules.values() for p in of_module}
        left = {
            id(p)
            for product in products
            if not product.recipe
            and not _is_attention(self.modules[product.module], product.operation)
            for p in of_modules[product.module]
        }
        converted = [
            name
            for name, module in self.modules.items()
            if isinstance(module.__dict__.get("cpd"), State)
        ]
        return Coverage(
            products,
            sum(every.values()),
            sum(number for key, number in every.items() if key not in left),
            tuple(name for name in converted if name not in self._called),
        )


def weights(module: nn.Module) -> list[Tensor]:
    """Returns the parameters with two or more dimensions that a module itself owns.

    Includes the parameters from which parametrizations compute weights. For nn.MultiheadAttention,
    also includes the weight of `out_proj`, which torch uses without calling `out_proj`.
    """
    sources: list[Iterable[Tensor]] = [module.parameters(recurse=False)]
    parametrizations = getattr(module, "parametrizations", None)
    if isinstance(parametrizations, nn.Module):
        sources.append(parametrizations.parameters())
    if isinstance(module, nn.MultiheadAttention):
        sources.append(weights(module.out_proj))
    return [p for p in chain(*sources) if p.dim() > 1]


def _is_attention(module: nn.Module, operation: str) -> bool:
    """Returns True if an operation computes attention's scores or values, not a projection."""
    if "scaled_dot_product" in operation:
        return True
    return isinstance(module, nn.MultiheadAttention) and "bmm" in operation


class _Eagerly:
    """A context in which compiled functions run eagerly. It has no effect during tracing."""

    def __enter__(self) -> None:
        self._stance = None
        if not torch.compiler.is_compiling():
            self._stance = torch.compiler.set_stance("force_eager")

    def __exit__(self, *error: Any) -> None:
        if self._stance is not None:
            self._stance.__exit__(None, None, None)


_WITHOUT_PRODUCTS = re.compile(
    "((Unsafe)?View|Reshape|T|Transpose|Permute|Expand|Unsqueeze|Squeeze|Slice|Select|Unbind|Split|"
    "Clone|Alias|ToCopy|Add|Sub|Mul|Div|Neg|Sum|Mean|Pow|Rsqrt|Gelu|Relu|Silu|Softmax|LogSoftmax|"
    "NllLoss|NativeLayerNorm|NativeBatchNorm|NativeDropout|Embedding|Cat|Stack)Backward[0-9]+"
)
"""Names of autograd nodes without products. Such nodes need no hooks."""


@contextmanager
def uncounted() -> Iterator[None]:
    """A context in which products are not counted."""
    Counter.paused += 1
    try:
        yield
    finally:
        Counter.paused -= 1


def _text_of_node() -> str | None:
    """Returns the text of the recipe or accumulator by which the running autograd node computes.

    Returns None unless the node computes the derivative of one of CPD's operators.
    """
    node = autograd_node()
    if not type(node).__name__.startswith("Derivative_of_"):
        return None
    text: str = getattr(node, "recipe", getattr(node, "text", ""))
    return text


def _text_of(func: Any, args: Sequence[Any]) -> str:
    """Returns the text of the recipe or accumulator by which a call of CPD's operator computes."""
    names = [argument.name for argument in func._schema.arguments]
    return next(str(args[names.index(n)]) for n in ("recipe", "accumulator", "text") if n in names)


def _described(recipe: Recipe) -> str:
    """Returns the recipe's name or text; "" if it rounds nothing in products."""
    casts = (*recipe._kept.operands, recipe.output)
    rounds = not recipe._is_native or any(cast is not None for cast in casts)
    return name_of(recipe) if rounds else ""


def tensors_in(values: Any) -> Iterable[Tensor]:
    """Yields the tensors in a module's arguments or results, also in containers and mappings."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor):
            yield leaf
        elif hasattr(leaf, "values") and callable(leaf.values):
            yield from tensors_in(list(leaf.values()))
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, (type, nn.Module)):
            yield from (x for x in vars(leaf).values() if isinstance(x, Tensor))


# ---- the first step of a converted model ---------------------------------------------------------


class Census:
    """Counts the first training step of a converted model, by forward pre-hooks of all modules.

    The hooks are removed after the step.

    The step begins at the first call, with gradients on, of the model or of a submodule with
    parameters. In eval mode the first such step is counted only if a backward pass follows.

    Args:
        model: the converted model.
        warn_below: if a smaller share of products ran emulated, the step warns; 0: it never warns.

    Attributes:
        result: the counts, after the step.
        warn_below: as the argument.
    """

    result: Coverage | None

    def __init__(self, model: nn.Module, warn_below: float) -> None:
        self.result = None
        self.warn_below = warn_below
        self._model: Any = weakref.ref(model)
        self._counter: Counter | None = None
        self._traces = self._evaluates = self._evaluated = False
        _CENSUSES[model] = self
        for module in model.modules():
            look = self.look if module is model else self.look_at_part
            module.register_forward_pre_hook(look, with_kwargs=True)

    def look(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """The forward pre-hook of the model itself: begins to count, or ends a counted step."""
        if torch.compiler.is_compiling():
            comptime(_look_at_compiled)
            return
        if get_eval_frame_callback() not in (None, False):
            self._look_before_compiled(model, args, kwargs)
            return
        if self._traces or recomputes_or_transforms():
            return
        if self._counts():
            self.finish()
        elif torch.is_grad_enabled():
            self._model = weakref.ref(model)
            _CENSUSES[model] = self
            self._begin(model, args, kwargs)

    def look_at_part(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """The forward pre-hook of a submodule: counts products if the model is not called."""
        if torch.compiler.is_compiling():
            comptime(_look_at_compiled)
            return
        if self._traces or not torch.is_grad_enabled() or recomputes_or_transforms():
            return
        if self._counts():
            assert self._counter is not None
            if not self._counter.is_open:
                self._counter.begin(model, args, kwargs)
        elif self.result is None and self._model is not None and _has_parameters(model):
            self._begin(model, args, kwargs)

    @torch._dynamo.disable
    def _look_before_compiled(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Traces the model to count the products of a step, before torch.compile compiles it."""
        if self.result is None and model.training and torch.is_grad_enabled():
            self._note_traced(model, args, kwargs)

    def _note_traced(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Traces `model` to count the products of a step.

        `model` is the converted model, or a submodule if the model itself is not called.
        """
        self._counter = None  # discard counts of submodules
        if (None if self._model is None else self._model()) is None or _is_looked_at(model):
            self._model = weakref.ref(model)
            _CENSUSES[model] = self
        try:
            self.note(self.trace(args, kwargs, model))
        except Exception as error:
            warn(
                f"coverage could not be counted as the model was compiled ({error}): give "
                "report.coverage the model's arguments, or call the model once before "
                "torch.compile",
                PrecisionWarning,
            )

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        model = self._model()
        if model is None or (not module.training and self._evaluated):
            return
        self._evaluates = not module.training
        self._evaluated |= self._evaluates
        self._counter = Counter(model, self._finished)
        self._counter.begin(module, args, kwargs)

    def _counts(self) -> bool:
        """Returns True while a step is being counted.

        The count of a call in eval mode is discarded if no backward pass followed: such a call is
        not a training step.
        """
        counter = self._counter
        if counter is None or counter.failed:
            return False
        if self._evaluates and not counter.reached and not counter.is_open:
            counter.end()
            self._counter = None
        return self._counter is not None

    def _finished(self) -> None:
        self.finish()

    def finish(self) -> Coverage | None:
        """Ends the count of a step, if one is being counted. Returns the counts, or None."""
        if not self._counts():
            return self.result
        assert self._counter is not None
        counter, self._counter = self._counter, None
        counted = counter.end()
        for module in counter.modules.values():
            detach(module, self)
        self.note(counted)
        return self.result

    def note(self, counted: Coverage) -> None:
        """Stores the counts of products; warns if the emulated share is below `warn_below`."""
        self.result = counted
        if counted.share < self.warn_below:
            warn(str(counted), PrecisionWarning)

    def trace(
        self, args: Sequence[Any], kwargs: dict[str, Any], part: nn.Module | None = None
    ) -> Coverage:
        """Predicts the counts of a training step with the given arguments, without values.

        The step is a forward pass, and a backward pass from the sum of the results. No value is
        computed and the model does not change. `part`: the submodule to call instead of the model.
        """
        model = None if self._model is None else self._model()
        if model is None:
            raise ValueError("the report has no model: it was deleted, or copied with its report")
        counter = Counter(model, lambda: None)
        model = model if part is None else part
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors = dict(chain(model.named_parameters(), model.named_buffers()))
        first = model.register_forward_pre_hook(counter.begin, with_kwargs=True)
        self._traces = True
        try:
            with mode, torch.enable_grad():
                fakes = {name: _without_values(x, mode) for name, x in tensors.items()}
                inputs = tree_map_only(Tensor, lambda x: _without_values(x, mode), (args, kwargs))
                results = functional_call(model, fakes, *inputs)
                ends = [x for x in tensors_in(results) if x.requires_grad]
                torch.autograd.backward([x.float().sum() for x in ends])
        finally:
            self._traces = False
            first.remove()
            counted = counter.end()
        return counted

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_counter": None, "_model": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Census:
        census = memo[id(self)] = type(self).__new__(type(self))
        vars(census).update(self.__getstate__())
        copied = None if self._model is None else memo.get(id(self._model()))
        if copied is not None:
            census._model = weakref.ref(copied)
            _CENSUSES[copied] = census
        return census


skip_code(Census.look.__code__)  # compiled alone, a second model would reuse it untraced


def _without_values(x: Tensor, mode: FakeTensorMode) -> Tensor:
    """Returns a tensor of the fake mode `mode`, with shape and strides of `x`.

    If shape and strides are symbolic, uses the example sizes that torch stores with them.
    """
    if not isinstance(x, FakeTensor):
        return mode.from_tensor(x, static_shapes=True)
    size, stride = ([_hint(n) for n in numbers] for numbers in (x.shape, x.stride()))
    empty = torch.empty_strided(size, stride, dtype=x.dtype, device=x.device)
    return empty.requires_grad_(x.requires_grad)


def _hint(number: Any) -> int:
    return int(number.node.hint) if isinstance(number, torch.SymInt) else int(number)


def _look_at_compiled(context: Any) -> None:
    """Counts the products of the first training step while torch.compile traces the model.

    The tracer calls this function when it traces `Census.look` or `Census.look_at_part`.
    """
    census, model, args, kwargs = (
        context.get_local(name)._i_will_not_complain_if_bc_breaks_VariableTracker()
        for name in ("self", "model", "args", "kwargs")
    )
    census, model = census.realize().value, model.realize().value
    if census.result is None and model.training and torch.is_grad_enabled():
        census._note_traced(model, _traced(args), _traced(kwargs))


def _traced(variable: Any) -> Any:
    """Returns the value that a tracer object of torch.compile represents, with fake tensors."""
    variable = variable.realize()
    if isinstance(variable, TensorVariable):
        return variable.as_proxy().node.meta["example_value"]
    if isinstance(variable, BaseListVariable):
        return variable.python_type()([_traced(x) for x in variable.items])
    if isinstance(variable, ConstDictVariable):
        pairs = variable.items.items()
        return {key.vt.as_python_constant(): _traced(x) for key, x in pairs}
    return variable.as_python_constant()


def coverage_of(model: nn.Module) -> Coverage | None:
    """Returns the counts of a converted model's first training step; None if no step ran yet."""
    census = _CENSUSES.get(model)
    return None if census is None else census.finish()


_CENSUSES: weakref.WeakKeyDictionary[nn.Module, Census] = weakref.WeakKeyDictionary()


def forget(model: nn.Module) -> None:
    """Removes the counts of a model, as `restore` does. `coverage_of` then returns None."""
    _CENSUSES.pop(model, None)


def detach(module: nn.Module, census: Census | None = None) -> None:
    """Removes the hooks of a `Census`, which counts a model's first step, from one module.

    `census` None: removes the hooks of every `Census`.
    """
    for number, hook in list(module._forward_pre_hooks.items()):
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, Census) and census in (None, owner):
            del module._forward_pre_hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _is_looked_at(model: nn.Module) -> bool:
    """Returns True if `model` is the converted model itself, not a submodule."""
    hooks = model._forward_pre_hooks.values()
    return any(getattr(hook, "__func__", None) is Census.look for hook in hooks)
