"""Evidence for the ids of any recommender, from a sample of its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import torch
from torch import Tensor

from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.data.histories import Grouped
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.runtime.communicator import LOCAL, Communicator, Partition

_SAMPLES = 4096


class LogEvidence(AutogradEvidence):
    """Gradients and losses by autograd, on at most `per_id` interactions of each id.

    Sums are scaled up to all interactions of the id. With more than `candidates` clusters, losses
    are computed for that many, those of lowest loss by a first-order approximation of the output,
    y + ∂y/∂b·(b′ − b), and infinite for the others. Each rank has a contiguous range of ids,
    balanced by interactions.
    """

    def __init__(
        self,
        recommender: Model,
        log: Interactions,
        side: str,
        take: Callable[[Tensor], Batch],
        *,
        per_id: int = 30,
        candidates: int = 8,
        rng: Callable[[], np.random.Generator] = lambda: np.random.default_rng(0),
        communicator: Communicator = LOCAL,
    ) -> None:
        """`take` makes a batch of rows of the log, which has no unseen ids.

        `rng` makes the generator that a sample is drawn with: equal ones give the same sample.
        """
        table = recommender.tables[side]
        assert isinstance(table, ClusteredEmbedding)  # noqa: S101  (others have no evidence)
        super().__init__(table, recommender.objective, data=(), model=recommender)
        self._recommender, self._group, self._take = recommender, Grouped(log, side), take
        self._side, self._per_id, self._candidates = side, per_id, candidates
        self._rng, self._communicator = rng, communicator
        counts = torch.from_numpy(self._group.counts)
        self._scale = (counts / counts.clamp(1, per_id)).to(table.weight)[:, None]

        self._own_ids = self.partition(torch.arange(len(counts))).mine

    def partition(self, members: Tensor) -> Partition:
        """Balanced by the interactions that are looked at."""
        work = np.minimum(self._group.counts[members.numpy()], self._per_id)
        return Partition.balanced(work, self._communicator)

    def interactions(self) -> Tensor:
        """From the whole log."""
        return torch.from_numpy(self._group.counts)

    def gradients(self, members: Tensor) -> Tensor:
        return super().gradients(members) * self._scale[members]

    def own_losses(self) -> Tensor:
        return (super().own_losses() * self._scale.squeeze(1))[self._own_ids]

    @torch.no_grad()
    def losses(self) -> Tensor:
        """Of the own cluster and of the best candidates; infinite for others."""
        table, count = self._table, self._candidates
        if table.num_clusters <= count:
            return (super().losses() * self._scale)[self._own_ids]
        linear = self._losses_if_linear()
        own = table.assignment[:-1].long()[:, None]
        chosen = linear.scatter(1, own, -torch.inf).topk(count, largest=False, sorted=False)[1]
        total = table.weight.new_zeros(chosen.shape)
        with self._evaluating():
            for batch in self._batches():
                ids = self._own(batch)
                vectors = table.weight[chosen[ids].T]
                size = min(self._at_once(batch, ids), count)
                for some, sums in zip(
                    torch.split(vectors, size), torch.split(total, size, 1), strict=True
                ):
                    self._add(sums, ids, self._under(batch, ids, some).T)
        losses = torch.full_like(linear, torch.inf)
        return losses.scatter_(1, chosen, total * self._scale)[self._own_ids]

    def _losses_if_linear(self) -> Tensor:
        table, model = self._table, self._recommender
        rows = table.weight[: table.num_clusters].detach()
        total = table.weight.new_zeros(table.num_embeddings, table.num_clusters)
        with self._evaluating():
            for batch in self._batches():
                output, ids, own, slopes = self._slopes(batch)
                # Samples × clusters, and tasks last, if there are several.
                moved = torch.stack(
                    [s @ rows.T - (s * own).sum(-1, keepdim=True) for s in slopes], -1
                )
                moved = moved if output.ndim > 1 else moved.squeeze(-1)
                others = output.unsqueeze(1) + moved
                losses = model.loss.of_samples(others.transpose(0, 1), batch.target)
                self._add(total, ids, losses.T)
        return total

    def _slopes(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Outputs, the ids they count for, their vectors, and ∂output/∂vector for each task."""
        table, ids = self._table, self._own(batch)
        own = table.weight[table.row_of(ids)].detach().requires_grad_()

        def leaf(requested: Tensor) -> Tensor:
            return (
                own
                if torch.equal(requested, ids)
                else table.weight[table.row_of(requested)].detach()
            )

        with torch.enable_grad(), table.probing(leaf):
            output = self._recommender.output(batch)
            tasks = output.unbind(-1) if output.ndim > 1 else (output,)
            slopes = [torch.autograd.grad(t.sum(), own, retain_graph=True)[0] for t in tasks]
        return output.detach(), ids, own.detach(), slopes

    def _own(self, batch: Batch) -> Tensor:
        """The ids that samples count for."""
        if self._side in ("users", "items"):
            return batch.user if self._side == "users" else batch.item
        place = self._recommender.column_names.index(self._side)
        return cast(Tensor, batch.columns)[..., place]

    def _batches(self, members: Tensor | None = None) -> Iterator[Batch]:
        counts, starts = self._group.counts, self._group.starts
        shifts = self._rng().integers(np.maximum(counts, 1))
        ids = np.arange(len(counts))[self._own_ids] if members is None else members.numpy()
        drawn = np.minimum(counts[ids], self._per_id)
        ends = np.cumsum(drawn)
        place = np.arange(int(drawn.sum())) - np.repeat(ends - drawn, drawn)
        # Every stride-th interaction from a random one on, around the corner: no two are the same.
        owner = np.repeat(ids, drawn)
        stride = np.maximum(counts[owner] // self._per_id, 1)
        chosen = starts[owner] + (shifts[owner] + place * stride) % counts[owner]
        rows = torch.from_numpy(self._group.order[chosen])
        for some in torch.split(rows, _SAMPLES) if len(rows) else ():
            yield self._take(some)
