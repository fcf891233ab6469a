# SPDX-License-Identifier: Apache-2.0
"""Layers that are one product: linear layers and convolutions."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from cpd.nn.converted.replaced import idle, used
from cpd.nn.converted.state import State
from cpd.nn.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from cpd.nn.functional import linear


class Product:
    """The parts that the layers here share."""

    what: ClassVar[str] = "products"
    one_type: ClassVar[bool] = True
    """True if torch refuses an input of another type than the weights'."""
    cpd: State
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def histories(cls, module: nn.Module) -> tuple[int, int]:
        """Returns the number of its products, and of attention's, that may have histories."""
        return 1, 0

    @classmethod
    def describe(cls, state: State) -> str:
        """Returns the parts of the recipe that are used, for the report."""
        return used(state)

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        return idle(state)


class EmulatedLinear(Product):
    """torch.nn.Linear by `cpd.functional.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Computes the module's forward by the recipe."""
        return linear(input, self.weight, self.bias, **self.cpd.arguments())


class EmulatedConv1D(Product):
    """The linear layer of transformers that has its weight as in × out."""

    def forward(self, x: Tensor) -> Tensor:
        """Computes the module's forward by the recipe."""
        return linear(x, self.weight.t(), self.bias, **self.cpd.arguments())


class Convolution(Product):
    """The attributes that all convolutions have."""

    stride: Any
    padding: Any
    dilation: Any
    groups: int


class EmulatedConv(Convolution):
    """torch.nn.Conv1d, Conv2d and Conv3d by `cpd.functional.conv1d` and so on."""

    padding_mode: str

    def forward(self, input: Tensor) -> Tensor:
        """Computes the module's forward by the recipe."""
        form = (conv1d, conv2d, conv3d)[self.weight.dim() - 3]
        return form(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            padding_mode=self.padding_mode,
            **self.cpd.arguments(),
        )


class EmulatedConvTranspose(Convolution):
    """torch.nn.ConvTranspose1d, …2d and …3d by `cpd.functional.conv_transpose1d` and so on."""

    kernel_size: Any
    _output_padding: Any

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Computes the module's forward by the recipe."""
        rank = self.weight.dim() - 2
        further = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, rank, self.dilation
        )
        form = (conv_transpose1d, conv_transpose2d, conv_transpose3d)[rank - 1]
        return form(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            further,
            self.groups,
            self.dilation,
            **self.cpd.arguments(),
        )


MIXINS: dict[type[nn.Module], type[Any]] = {
    nn.Linear: EmulatedLinear,
    nn.Conv1d: EmulatedConv,
    nn.Conv2d: EmulatedConv,
    nn.Conv3d: EmulatedConv,
    nn.ConvTranspose1d: EmulatedConvTranspose,
    nn.ConvTranspose2d: EmulatedConvTranspose,
    nn.ConvTranspose3d: EmulatedConvTranspose,
}
