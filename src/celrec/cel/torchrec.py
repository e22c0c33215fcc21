"""Clusters as a managed collision of TorchRec: ids are remapped to the rows that they share.

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
    """Maps each id to its cluster, whose row is in a table of an `EmbeddingBagCollection`.

    The collection has as many rows as there may be clusters. `table` is a
    `ClusteredEmbedding` that shares its weight; all ids begin in one cluster. A `Clusterer`
    accepts this module as a table:

        bags = EmbeddingBagCollection(tables=[item])      # with num_embeddings = 100 rows
        clusters = ClusterCollisionModule(bags, "item", num_ids=100_000)
        collection = ManagedCollisionCollection({"item": clusters}, [item])
        model = ManagedCollisionEmbeddingBagCollection(bags, collection)
        clusterer = Clusterer(clusters, optimizer, objective)

    The table must have one feature, so that each sample has one bag.

    In a `DistributedModelParallel` model, leave the collection of such tables out of the plan:
    they are small, so each rank has a copy, while other tables are sharded. With
    `DistributedEvidence` all ranks make the same moves. Evidence needs the wrapped module:

        model = DistributedModelParallel(model, plan=plan, sharders=sharders)
        evidence = BagEvidence(clusters, model.module)
        clusterer = Clusterer(clusters.table, optimizer, DistributedEvidence(evidence))

    Sharded tables communicate in every forward pass, and evidence makes one pass for each
    position in the largest bag of a batch. So the largest bags must have the same size on all
    ranks.
    """

    def __init__(self, collection: EmbeddingBagCollection, name: str, num_ids: int) -> None:
        """For the table `name` of the collection, with `num_ids` ids."""
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
        self._bag = (bag,)  # in a tuple, so that it is not registered as a submodule
        self._probe: BagProbe | None = None

    @contextmanager
    def probing(self, probe: BagProbe) -> Iterator[None]:
        """Within it, `probe` makes the vectors of all ids; the collection pools them as usual."""
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
        """Replace ids by rows; unseen ids share one, as in any clustered table."""
        del mutate_miss_lengths, write_weights  # there are no misses, and nothing to write
        return {name: self._remapped(feature) for name, feature in features.items()}

    def forward(
        self, features: dict[str, JaggedTensor], mutate_miss_lengths: bool = True
    ) -> dict[str, JaggedTensor]:
        """The same as `remap`."""
        return self.remap(features, mutate_miss_lengths)

    def preprocess(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """Return the features unchanged."""
        return features

    def profile(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """Return the features unchanged: usage statistics are not needed."""
        return features

    def evict(self) -> Tensor | None:
        """Nothing is ever evicted."""
        return None

    def output_size(self) -> int:
        """The number of rows."""
        return self.table.max_clusters

    def input_size(self) -> int:
        """The number of ids."""
        return self.table.num_embeddings

    def buckets(self) -> int:
        """One: the map is not sharded."""
        return 1

    def open_slots(self) -> Tensor:
        """The number of rows that no cluster uses yet."""
        free = self.table.max_clusters - self.table.num_clusters
        return torch.tensor([free], device=self.table.weight.device)

    def validate_state(self) -> None:
        """Raise if an id is mapped to a row that no cluster uses."""
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
        """Not supported: rows of clusters are not sharded."""
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
            # Each position gets a row of its own for this lookup.
            self._bag[0]._parameters["weight"] = cast(nn.Parameter, vectors)
            rows = torch.arange(len(ids), device=ids.device)
        return JaggedTensor(
            values=rows,
            lengths=feature.lengths(),
            offsets=feature.offsets(),
            weights=feature.weights_or_none(),
        )
