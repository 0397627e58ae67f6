"""AdamW on a clipped gradient, with torch.optim's fused kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from multippo.backends.api import Optimizer, OptimizerConfig
from multippo.backends.torch.modules import to_numpy
from multippo.trees import tree_leaves


class Moments(NamedTuple):
    """State of the optimiser, all of which a step changes in place.

    Attributes:
        first: First moments, by name of the parameter.
        second: Second moments, by name of the parameter.
        steps: Number of steps taken, a float32 scalar, as the fused kernel wants it.
    """

    first: dict[str, torch.Tensor]
    second: dict[str, torch.Tensor]
    steps: torch.Tensor


class TorchOptimizer(Optimizer):
    """Optimiser that steps in place, and never waits for a device: the kernel itself skips a step."""

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config

    def init(self, params: Any) -> Moments:
        return self.import_state(params, {}, {}, 0)

    def step(self, params: Any, grads: Any, state: Moments, learning_rate: Any, skip: Any) -> tuple[Any, Any, Any]:
        if not params:  # the network is frozen as a whole
            return params, state, torch.zeros_like(learning_rate)
        config, tensors = self._config, list(grads.values())
        norm = torch.nn.utils.get_total_norm(tensors)
        if config.gradient_clipping is not None:
            # clip_grad_norm_ would add 1e-6 to the norm.
            scale = config.gradient_clipping / torch.clamp(norm, min=config.gradient_clipping)
            tensors = torch._foreach_mul(tensors, scale)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        skipped = (skip | ~torch.isfinite(norm)).to(torch.float32)
        with torch.no_grad():
            state.steps.add_(1.0 - skipped)
            # The operator of torch.optim.AdamW(fused=True), which alone would not be told to skip.
            torch._fused_adamw_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
                list(params.values()),
                [_laid_out_like(p, grad) for p, grad in zip(params.values(), tensors, strict=True)],
                [state.first[name] for name in params],
                [state.second[name] for name in params],
                [],
                [state.steps] * len(params),
                lr=learning_rate,
                beta1=config.beta1,
                beta2=config.beta2,
                weight_decay=config.weight_decay,
                eps=config.adam_epsilon,
                amsgrad=False,
                maximize=False,
                found_inf=skipped,
            )
        return params, state, norm

    def keep(self, params: Any, state: Moments) -> Any:
        return [(tensor, tensor.detach().clone()) for tensor in tree_leaves((params, state))]

    def restore(self, kept: Any, params: Any, state: Moments, condition: Any) -> tuple[Any, Any]:
        if bool(condition):
            with torch.no_grad():
                for tensor, before in kept:
                    tensor.copy_(before)
        return params, state

    def export_state(self, state: Moments) -> tuple[Mapping[Any, Any], Mapping[Any, Any], int]:
        first, second = ({n: to_numpy(m).copy() for n, m in moments.items()} for moments in state[:2])
        return first, second, int(state.steps)

    def import_state(self, params: Any, first: Mapping[Any, Any], second: Mapping[Any, Any], count: int) -> Moments:
        device = next((p.device for p in params.values()), None)

        def own(moments: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
            return {name: _moment(moments.get(name, 0.0), p) for name, p in params.items()}

        return Moments(own(first), own(second), torch.tensor(float(count), dtype=torch.float32, device=device))


def _moment(value: Any, parameter: torch.Tensor) -> torch.Tensor:
    own = torch.as_tensor(np.array(value, order="C")).to(parameter)
    return _laid_out_like(parameter, own.expand(parameter.shape))


def _laid_out_like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``value`` with the parameter's strides: the fused kernel walks memory, and takes no notice of strides.

    The gradient of a convolution of images with channels last has other strides than its kernel.
    """
    return value if value.stride() == parameter.stride() else torch.empty_like(parameter).copy_(value)
