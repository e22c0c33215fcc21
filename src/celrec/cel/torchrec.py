"""Clusters as a managed collision of TorchRec: ids are turned into the rows that they share.

Needs TorchRec: `pip install celrec[torchrec]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, cast

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionModule
from torchrec.sparse.jagged_tensor import JaggedTensor

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import BagProbe, Bags
from celrec.errors import CelrecError


class ClusterCollisionModule(ManagedCollisionModule):  # type: ignore[misc]  # not typed
    """Maps each id to its cluster, whose row one table of an `EmbeddingBagCollection` holds.

    The collection is made with as many rows as there are to be clusters, and looks them
    up as ever. `table` is a `ClusteredEmbedding` over the rows of the collection; all ids
    begin in one cluster. A `Clusterer` takes this module for a table:

        bags = EmbeddingBagCollection(tables=[item])      # with num_embeddings = 100 rows
        clusters = ClusterCollisionModule(bags, "item", num_ids=100_000)
        collection = ManagedCollisionCollection({"item": clusters}, [item])
        model = ManagedCollisionEmbeddingBagCollection(bags, collection)
        clusterer = Clusterer(clusters, optimizer, objective)

    The table must have one feature, so that it is clear whose bag a sample's is.

    In a `DistributedModelParallel` model, leave the collection of such tables out of the plan:
    they are small, so each process has them, while others are sharded. With `DistributedEvidence`
    all processes make the same moves. Evidence looks at the module within:

        model = DistributedModelParallel(model, plan=plan, sharders=sharders)
        evidence = BagEvidence(clusters, model.module)
        clusterer = Clusterer(clusters.table, optimizer, DistributedEvidence(evidence))

    Sharded tables meet in every forward pass. So let the largest bags of ids in clusters be
    equally large in the batches of all processes: evidence makes a pass for each of their places.
    """

    def __init__(self, collection: EmbeddingBagCollection, name: str, num_ids: int) -> None:
        """For the table `name` of an `EmbeddingBagCollection`, and so many ids."""
        configs = {config.name: config for config in collection.embedding_bag_configs()}
        if name not in configs:
            raise CelrecError(
                f"name: the collection has no table {name!r}; it has {', '.join(configs)}"
            )
        features = configs[name].feature_names
        if len(features) != 1:
            raise CelrecError(
                f"table {name!r} has the features {', '.join(features)}; give each its own table"
            )
        bag: nn.EmbeddingBag = collection.embedding_bags[name]
        super().__init__(bag.weight.device, output_segments=[0, bag.num_embeddings])
        self.table = ClusteredEmbedding(
            num_ids,
            bag.embedding_dim,
            max_clusters=bag.num_embeddings,
            device=bag.weight.device,
            dtype=bag.weight.dtype,
        )
        self.table.weight = cast(nn.Parameter, bag.weight)
        self._bag = (bag,)  # not a part of this module, but of the collection
        self._probe: BagProbe | None = None

    @contextmanager
    def probing(self, probe: BagProbe) -> Iterator[None]:
        """Let `probe` make the vectors of all ids, which the collection sums up as ever."""
        (bag,) = self._bag
        weight = bag._parameters["weight"]
        self._probe = probe
        try:
            yield
        finally:
            self._probe = None
            bag._parameters["weight"] = weight

    def remap(
        self,
        features: dict[str, JaggedTensor],
        mutate_miss_lengths: bool = True,
        write_weights: Tensor | None = None,
    ) -> dict[str, JaggedTensor]:
        """Rows in the place of ids; unseen ids share one like in any clustered table."""
        del mutate_miss_lengths, write_weights  # there are no misses, and nothing to write
        return {name: self._remapped(feature) for name, feature in features.items()}

    def forward(
        self, features: dict[str, JaggedTensor], mutate_miss_lengths: bool = True
    ) -> dict[str, JaggedTensor]:
        """See `remap`."""
        return self.remap(features, mutate_miss_lengths)

    def preprocess(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """Nothing has to be done."""
        return features

    def profile(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """Nothing is counted: a `Clusterer` has the evidence."""
        return features

    def evict(self) -> Tensor | None:
        """Nobody is ever evicted."""
        return None

    def output_size(self) -> int:
        """How many rows there are."""
        return self.table.max_clusters

    def input_size(self) -> int:
        """How many ids there are."""
        return self.table.num_embeddings

    def buckets(self) -> int:
        """One: the map is not cut in pieces."""
        return 1

    def open_slots(self) -> Tensor:
        """How many clusters there may be yet."""
        return self.table.max_clusters - self.table._active.reshape(1)

    def validate_state(self) -> None:
        """Complain about a map that leads to rows which are not in use."""
        highest = int(self.table.assignment.max())
        if highest >= self.table.num_clusters:
            raise CelrecError(
                f"state: an id is in cluster {highest}, but there are {self.table.num_clusters}; "
                "load it as it was saved"
            )

    def rebuild_with_output_id_range(
        self,
        output_id_range: tuple[int, int],
        output_segments: list[int],
        device: torch.device | None = None,
    ) -> NoReturn:
        """The few rows of clusters are not to be cut in pieces."""
        del output_segments, device
        raise CelrecError(
            f"output_id_range {output_id_range}: clustered tables are not sharded by row; they are "
            "small enough for table-wise or data-parallel sharding"
        )

    def _remapped(self, feature: JaggedTensor) -> JaggedTensor:
        ids = feature.values().long()
        rows = self.table.row_of(ids)
        if self._probe is not None:
            lengths = feature.lengths()
            numbers = torch.arange(len(lengths), device=ids.device)
            vectors = self._probe(Bags(ids, numbers.repeat_interleave(lengths), len(lengths)))
            if vectors.dim() != 2:
                raise CelrecError("probe: a collection takes one vector for each id")
            # Each place is a row of its own for this one look-up.
            self._bag[0]._parameters["weight"] = cast(nn.Parameter, vectors)
            rows = torch.arange(len(ids), device=ids.device)
        return JaggedTensor(
            values=rows,
            lengths=feature.lengths(),
            offsets=feature.offsets(),
            weights=feature.weights_or_none(),
        )
