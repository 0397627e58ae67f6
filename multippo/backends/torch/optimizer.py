"""AdamW on a clipped gradient, with torch.optim's fused kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from multippo.backends.api import Optimizer, OptimizerConfig
from multippo.backends.torch.modules import to_numpy


class TorchOptimizer(Optimizer):
    """Optimiser that steps in place; the state passed around is the ``torch.optim.AdamW`` itself."""

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config
        self._names: list[str] = []

    def init(self, params: Any) -> Any:
        config, self._names = self._config, list(params)
        tensors = list(params.values())
        device = tensors[0].device if tensors else torch.device("cpu")
        return torch.optim.AdamW(
            tensors or [torch.zeros(0)],
            # As a tensor the rate can change without a recompilation or a second optimiser.
            lr=torch.zeros((), device=device),
            betas=(config.beta1, config.beta2),
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def step(self, params: Any, grads: Any, state: Any, learning_rate: Any, skip: Any) -> tuple[Any, Any, Any]:
        tensors = list(grads.values())
        norm = torch.nn.utils.get_total_norm(tensors)
        if bool(skip | ~torch.isfinite(norm)):
            return params, state, norm
        clip = self._config.gradient_clipping
        if clip is not None:
            # clip_grad_norm_ would add 1e-6 to the norm.
            scale = clip / torch.clamp(norm, min=clip)
            tensors = [grad * scale for grad in tensors]
        for parameter, grad in zip(params.values(), tensors, strict=True):
            parameter.grad = _laid_out_like(parameter, grad)
        state.param_groups[0]["lr"].copy_(learning_rate)
        state.step()
        state.zero_grad()
        return params, state, norm

    def keep(self, params: Any, state: Any) -> Any:
        moments = [tensor for parameter in params.values() for tensor in state.state.get(parameter, {}).values()]
        return [(tensor, tensor.detach().clone()) for tensor in (*params.values(), *moments)], bool(moments)

    def restore(self, kept: Any, params: Any, state: Any, condition: Any) -> tuple[Any, Any]:
        if bool(condition):
            tensors, had_moments = kept
            with torch.no_grad():
                for tensor, before in tensors:
                    tensor.copy_(before)
            if not had_moments:
                state.state.clear()
        return params, state

    def export_state(self, state: Any) -> tuple[Mapping[Any, Any], Mapping[Any, Any], int]:
        first, second, count = {}, {}, 0
        for name, parameter in zip(self._names, state.param_groups[0]["params"], strict=False):
            moments = state.state.get(parameter)
            zeros = np.zeros(tuple(parameter.shape), np.float32)
            first[name] = to_numpy(moments["exp_avg"]).copy() if moments else zeros
            second[name] = to_numpy(moments["exp_avg_sq"]).copy() if moments else zeros
            count = int(moments["step"]) if moments else count
        return first, second, count

    def import_state(self, params: Any, first: Mapping[Any, Any], second: Mapping[Any, Any], count: int) -> Any:
        optimizer = self.init(params)
        for name, parameter in params.items():
            optimizer.state[parameter] = {
                "step": torch.tensor(float(count), device=parameter.device),
                "exp_avg": _moment(first.get(name, 0.0), parameter),
                "exp_avg_sq": _moment(second.get(name, 0.0), parameter),
            }
        return optimizer


def _moment(value: Any, parameter: torch.Tensor) -> torch.Tensor:
    own = torch.as_tensor(np.array(value, order="C")).to(parameter)
    return _laid_out_like(parameter, own.expand(parameter.shape))


def _laid_out_like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``value`` with the parameter's strides: the fused kernel walks memory, and takes no notice of strides.

    The gradient of a convolution of images with channels last has other strides than its kernel.
    """
    return value if value.stride() == parameter.stride() else torch.empty_like(parameter).copy_(value)
