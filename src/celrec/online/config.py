"""Settings of online training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.errors import CelrecError
from celrec.models.losses import LOSSES
from celrec.online.hard_clusters import HardClusterTrainer
from celrec.online.latest_evidence import OnlineClusterConfig
from celrec.online.mixtures import MixtureTrainer
from celrec.online.personal import PersonalTableTrainer
from celrec.online.plain_tables import ComposedTableTrainer, RowTableTrainer
from celrec.online.row_descent import RowDescentConfig
from celrec.online.table_trainer import TableTrainer
from celrec.online.trainer import OnlineTrainer
from celrec.recommender.id_model import IdModel
from celrec.runtime.memory_budget import MemoryBudget

ASSIGNMENTS = ("soft", "hard")


@dataclass(frozen=True, slots=True)
class OnlineConfig:
    """How a recommender learns from events in their order (CEL-Lite)."""

    assignment: str = "soft"
    """`hard`: every id is in one cluster, as the paper has it; `soft`: it is where the evidence
    puts it, between as many rows as `most_rows`."""
    batch: int = 256
    shared: RowDescentConfig = field(
        default_factory=lambda: RowDescentConfig(learning_rate=0.3, average=False)
    )
    """For rows of clusters."""
    plain: RowDescentConfig = field(default_factory=RowDescentConfig)
    """For all other tables."""
    network_rate: float = 1e-3
    """Adam's learning rate for all that is no table of ids."""
    spread: float = 0.5
    """The standard deviation of what rows that mixtures are made of begin with."""
    scalars: float = 0.3
    """The same for scalars that a model wants of every id, such as biases."""
    small: float = 0.02
    """The same for all other rows."""
    most_rows: int = 32
    temperature: float = 1.0
    """What a loss is divided by to be a log likelihood: see `MixtureTrainer`."""
    moving: OnlineClusterConfig = field(default_factory=OnlineClusterConfig)
    replay: bool = False
    """Whether the latest events of the ids in a batch are learned with it, in `hard`."""
    own: RowDescentConfig = field(default_factory=lambda: RowDescentConfig(l2=0.1))
    """For what ids differ by from what they share, in tables where they may."""
    beside_own: float = 1.0
    """How many times as high the learning rate of shared rows is in such tables."""
    own_above: int = 50
    """How many events an id must have had to differ."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.assignment not in ASSIGNMENTS:
            raise CelrecError(
                f"assignment must be one of {', '.join(ASSIGNMENTS)}, not {self.assignment!r}"
            )
        if self.replay and self.assignment != "hard":
            raise CelrecError("replay needs assignment 'hard': only there are events kept")
        for name in (
            *("batch", "network_rate", "spread", "small", "most_rows", "temperature"),
            "beside_own",
        ):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")

    def stronger(self, factor: float) -> OnlineConfig:
        """The same with penalties so many times as strong."""
        shared = replace(self.shared, l2=factor * self.shared.l2)
        plain = replace(self.plain, l2=factor * self.plain.l2)
        return replace(
            self, shared=shared, plain=plain, own=replace(self.own, l2=factor * self.own.l2)
        )

    def faster(self, factor: float) -> OnlineConfig:
        """The same with learning rates so many times as high."""

        def scaled(how: RowDescentConfig) -> RowDescentConfig:
            return replace(how, learning_rate=factor * how.learning_rate)

        return replace(
            self,
            shared=scaled(self.shared),
            plain=scaled(self.plain),
            own=scaled(self.own),
            network_rate=factor * self.network_rate,
        )

    def trainer(self, recommender: IdModel, budget: MemoryBudget | None = None) -> OnlineTrainer:
        """A trainer for a recommender, as this says.

        What is held for ids is where a `budget` puts it.
        """
        tables = recommender.whole_tables
        sides: dict[str, TableTrainer] = {}
        for place, (name, whole) in enumerate(tables.items()):
            table, shared = whole, self.shared
            if isinstance(whole, PersonalEmbedding):
                rate = self.beside_own * shared.learning_rate
                table, shared = whole.shared, replace(shared, learning_rate=rate)
            if isinstance(table, PosteriorEmbedding):
                sides[name] = MixtureTrainer(
                    name,
                    table,
                    shared,
                    self.temperature,
                    merge_within=self.moving.merge_within,
                    seed=self.seed,
                    budget=budget,
                )
            elif isinstance(table, ClusteredEmbedding):
                sides[name] = HardClusterTrainer(
                    name,
                    table,
                    shared,
                    self.moving,
                    place,
                    len(tables),
                    moments=self.replay or recommender.history_length > 0,
                    conversions=recommender.loss is LOSSES["cross-entropy"],
                    seed=self.seed,
                    budget=budget,
                )
            elif isinstance(table, SharedRows) and not table.needs_gradients:
                sides[name] = RowTableTrainer(
                    name, table, self.plain, spread=self.small, seed=self.seed, budget=budget
                )
            else:
                sides[name] = ComposedTableTrainer(name, table, self.plain)
            if isinstance(whole, PersonalEmbedding):
                sides[name] = PersonalTableTrainer(
                    sides[name], whole, self.own, self.own_above, place, budget
                )
        return OnlineTrainer(
            recommender, sides, self.network_rate, replay=self.replay, budget=budget
        )

    @torch.no_grad()
    def begin(self, recommender: IdModel, mean: float) -> None:
        """Give the tables of a recommender their first rows; targets have about this mean.

        Rows of a non-negative factorisation are such that predictions are about the mean.
        """
        generator = torch.Generator().manual_seed(self.seed)
        scalars = recommender.model.extra_columns
        for whole in recommender.whole_tables.values():
            table = whole.shared if isinstance(whole, PersonalEmbedding) else whole
            spread = self.spread if isinstance(table, PosteriorEmbedding) else self.small
            for weight in table.parameters():
                if not isinstance(table, PosteriorEmbedding | SharedRows):
                    break  # they know best what to begin with
                if self.plain.non_negative:
                    level = (max(mean, 0.0) / table.embedding_dim) ** 0.5
                    weight.normal_(1, self.spread, generator=generator).abs_().mul_(level)
                    continue
                weight.normal_(0, spread, generator=generator)
                if scalars and isinstance(table, PosteriorEmbedding):
                    weight[:, -scalars:].normal_(0, self.scalars, generator=generator)
        recommender.model.set_mean(recommender.loss.output(mean))
