# SPDX-License-Identifier: Apache-2.0
"""Finds the groups of ranks that exchange the largest magnitudes for delayed scaling."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpd.numeric.shown import shown


def named(group: Any) -> str | bool | None:
    """Returns the name of a process group, which a model can copy and pickle, unlike the group.

    None and False are returned unchanged. Raises TypeError for anything else.
    """
    if group is None or group is False:
        return group
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        name: str = group.group_name
        return name
    raise TypeError(
        "amax_group must be a torch.distributed process group that this rank is in, None (the "
        f"ranks of DDP or FSDP2) or False (none), got {shown(group)}"
    )


def resolved(name: str) -> Any:
    """Returns the process group `name`. Raises ValueError if this process does not have it."""
    try:
        return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]
    except (RuntimeError, ValueError, KeyError) as error:
        raise ValueError(
            f"this process has no process group {shown(name)}, the model's amax_group: convert the "
            "model again"
        ) from error


def groups_of(model: nn.Module) -> list[Any]:
    """Returns the process groups of the DDP or FSDP2 that wraps `model`, during a call of `model`.

    Returns no groups if neither DDP nor FSDP2 wraps `model` itself.
    """
    ddp: Any = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if ddp is not None and _within(ddp.module) is model:
        return [] if ddp._join_config.enable else [ddp.process_group]
    return _groups_of_fsdp(model)


def _within(model: nn.Module) -> nn.Module:
    """Returns the model that torch.compile wraps; `model` itself if it is not compiled."""
    compiled = getattr(model, "_orig_mod", None)
    return compiled if isinstance(compiled, nn.Module) else model


def _groups_of_fsdp(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            sharded = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            if sharded[0] is not None:
                mesh = sharded[0].mesh_info
                names = ("shard_process_group", "replicate_process_group")
                return [getattr(mesh, name) for name in names if hasattr(mesh, name)]
    return []
