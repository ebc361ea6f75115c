"""The ranks of a layout as one DeviceMesh, and this rank's place in it."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from .layout import ORDER, Layout


class RankMesh:
    """One DeviceMesh with a dimension for every size above 1, named as in the profile, and `dp_shard` always.

    It is made when a part of it is first wanted: plain DDP needs none.

    Args:
        layout: The sizes; their product is the world size.
        device_type: cpu or cuda.
    """

    def __init__(self, layout: Layout, device_type: str) -> None:
        self.layout = layout
        self.place = layout.coordinates(dist.get_rank())
        self._device_type = device_type

    @cached_property
    def whole(self) -> Any:
        """The DeviceMesh of all ranks. A collective when first used."""
        names = [name for name in ORDER if name == "dp_shard" or getattr(self.layout, name) > 1]
        shape = tuple(getattr(self.layout, name) for name in names)
        return init_device_mesh(self._device_type, shape, mesh_dim_names=tuple(names))

    @cached_property
    def sharding(self) -> Any:
        """The submesh that weights are sharded over: (dp_replicate,) dp_shard × cp. A collective when first used.

        The ranks that share sequences hold the same weights, so these are sharded over them, too.
        """
        inner = self.whole["dp_shard"]
        if self.layout.cp > 1:
            inner = self.whole["dp_shard", "cp"]._flatten("dp_shard_cp")
        if self.layout.dp_replicate == 1:
            return inner
        with warnings.catch_warnings():
            # Torch means to take this away and has no public way yet to put a flattened dimension beside another.
            warnings.filterwarnings("ignore", message="Slicing a flattened dim")
            return self.whole["dp_replicate", inner.mesh_dim_names[0]]

    def group(self, name: str) -> Any:
        """The process group of this rank along one dimension of a size above 1. A collective when first used."""
        return self.whole.get_group(name)

    @property
    def first_stage(self) -> bool:
        """Whether this rank has the embedding."""
        return self.place.pp == 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank has the head, and with it the loss."""
        return self.place.pp == self.layout.pp - 1
