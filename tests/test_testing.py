"""Tables that break one promise each must be caught, by the promise that they break."""

import pytest
import torch
from torch import nn

from celrec import CelrecError
from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.robe import RobeEmbedding
from celrec.testing import check_embedding


class Good(ModuloEmbedding):
    """Keeps all promises; the others are this one, but for one thing."""


class OneAxisTooMany(Good):
    def vectors(self, ids):
        return super().vectors(ids).unsqueeze(-1)


class OnlyBatches(Good):
    def vectors(self, ids):
        return super().vectors(ids.view(len(ids), -1)).view(*ids.shape, -1)


class OnlyWideIds(Good):
    def forward(self, ids):
        if ids.dtype != torch.int64:
            raise TypeError("ids must be int64")
        return super().forward(ids)


class KnowsItsNeighbours(Good):
    def vectors(self, ids):
        vectors = super().vectors(ids)
        return vectors - vectors.mean() if vectors.numel() > 3 else vectors


class Double(Good):
    def vectors(self, ids):
        return super().vectors(ids).double()


class NeverHalf(Good):
    def __init__(self, *sizes, dtype=None, **options):
        wider = torch.float32 if dtype == torch.float16 else dtype
        super().__init__(*sizes, dtype=wider, **options)


class NotANumber(Good):
    def vectors(self, ids):
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return torch.where(seen.unsqueeze(-1), super().vectors(ids), torch.nan)


class OutOfRange(Good):
    def vectors(self, ids):
        return self.weight[ids % (2**41) % 5] if bool((ids >= 0).all()) else self.weight[ids]


class OtherwiseAfterTraining(Good):
    """What it does in serving depends on how it was adapted."""

    adapted = False

    def adapt(self, optimizer=None):
        del optimizer
        self.adapted = True

    def vectors(self, ids):
        vectors = super().vectors(ids)
        return vectors if self.training or not self.adapted else vectors.round()


class ZeroForUnseenInServing(Good):
    def vectors(self, ids):
        if self.training:
            return super().vectors(ids)
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return torch.where(seen.unsqueeze(-1), super().vectors(ids), 0.0)


class Seedless(Good):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        nn.init.normal_(self.weight, generator=torch.Generator().manual_seed(torch.seed() % 2**32))


class AlwaysTheSame(Good):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        nn.init.normal_(self.weight, generator=torch.Generator().manual_seed(0))


class Detached(Good):
    def vectors(self, ids):
        return super().vectors(ids).detach()


class HalfDetached(Good):
    """Only one column learns."""

    def vectors(self, ids):
        vectors = super().vectors(ids)
        return torch.cat([vectors[..., :1], vectors[..., 1:].detach()], -1)


class TwiceTheGradient(Good):
    def vectors(self, ids):
        vectors = super().vectors(ids)
        return 2 * vectors - vectors.detach()


class Rounded(Good):
    """Its gradients go straight through, which is meant."""

    def vectors(self, ids):
        vectors = super().vectors(ids)
        return vectors + ((vectors * 64).round() / 64 - vectors).detach()


class RoundedTheWrongWay(Good):
    def vectors(self, ids):
        vectors = super().vectors(ids)
        return (2 * vectors).detach() - vectors


class PaddingNotZero(Good):
    def forward(self, ids):
        return self.vectors(ids.long())


class PaddingThatLearns(Good):
    def forward(self, ids):
        vectors = super().forward(ids)
        if self.padding_idx is None:
            return vectors
        raw = self.vectors(ids.long())
        return vectors + (raw - raw.detach())


class PaddingForgotten(Good):
    def __init__(self, *sizes, padding_idx=None, **options):
        del padding_idx
        super().__init__(*sizes, **options)


class AllIsPadding(Good):
    def forward(self, ids):
        vectors = super().forward(ids)
        return vectors if self.padding_idx is None else 0 * vectors


class AdaptsToNewParameters(Good):
    def adapt(self, optimizer=None):
        del optimizer
        self.weight = nn.Parameter(self.weight.detach().clone())


class AdaptsToInfinity(Good):
    def adapt(self, optimizer=None):
        if optimizer is None:
            with torch.no_grad():
                self.weight /= 0


class PenaltyOfEachRow(Good):
    def penalty(self):
        return self.weight.square().sum(1)


class Negative(Good):
    def vectors(self, ids):
        return super().vectors(ids) - 1


class Foreign(Good):
    def non_negative_parameters(self):
        return [nn.Parameter(torch.ones(1))]


class SharedCopies(Good):
    def __deepcopy__(self, memo):
        twin = type(self)(self.num_embeddings, self.embedding_dim, rows=5, seed=self.seed)
        twin.weight = self.weight
        return twin


class StateOutsideOfTheState(Good):
    """What it learns by adapting is not saved."""

    scale = 1.0

    def adapt(self, optimizer=None):
        del optimizer
        self.scale *= 1.1

    def vectors(self, ids):
        return self.scale * super().vectors(ids)


class ForgetsItsSeed(Good):
    def settings(self):
        return {**super().settings(), "seed": 0}


class ForgetsItsPadding(Good):
    def settings(self):
        return {**super().settings(), "padding_idx": None}


class SettingsThatAreTensors(Good):
    def settings(self):
        return {**super().settings(), "seed": torch.tensor(self.seed)}


class StaysSingle(Good):
    def _apply(self, fn, *rest):
        del fn, rest
        return self


class ServesOthers(Good):
    """as_served() is as in training, but settled() is not."""

    def settled(self):
        with torch.no_grad():
            self.weight *= 2
        return self


class ForgetsTheIndex(AdaptiveEmbedding):
    def memory(self, *, training=False):
        return Memory(super().memory(training=training).table, 0)


class CountsFourBytes(Good):
    def memory(self, *, training=False):
        del training
        return Memory(self.weight.numel() * 4, 0)


class HiddenTensor(Good):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.cache = [1, 2]
        self.hidden = torch.zeros(3)


class LargerForServing(Good):
    def memory(self, *, training=False):
        return Memory(self.weight.nbytes, 0 if training else 1)


class TwiceTheRows(Good):
    def __init__(self, num_embeddings, embedding_dim, *, rows, **options):
        super().__init__(num_embeddings, embedding_dim, rows=2 * rows, **options)
        self.rows_requested = rows

    def settings(self):
        return {**super().settings(), "rows": self.rows_requested}


class TwiceTheRowsInSecret(TwiceTheRows):
    def extra_repr(self):
        return ""


class TwiceTheRowsDenied(TwiceTheRows):
    overrun = 1.0


class OverrunOfNothing(Good):
    overrun = 2.0

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.rows_requested = None

    def settings(self):
        return {**super().settings(), "rows": self.num_rows}


class GrowsWithOtherVectors(Good):
    def grow(self, num_embeddings):
        super().grow(num_embeddings)
        with torch.no_grad():
            self.weight *= 1.5


class GrowsNot(Good):
    def grow(self, num_embeddings):
        Embedding.grow(self, num_embeddings)


class GrowsInSilence(Good):
    def grow(self, num_embeddings):
        if num_embeddings < self.num_embeddings:
            super().grow(num_embeddings)


class Shrinks(Good):
    def grow(self, num_embeddings):
        self.num_embeddings = num_embeddings


class GrowsUnasked(Good):
    traits = Traits(low_time=True, low_memory=True, incremental=False)


class NewIdsStayAsTheyAre(Good):
    """Those beyond the ones that it was made for take no gradient."""

    def __init__(self, num_embeddings, *rest, **options):
        super().__init__(num_embeddings, *rest, **options)
        self.first = num_embeddings

    def vectors(self, ids):
        vectors = super().vectors(ids)
        return torch.where((ids < self.first).unsqueeze(-1), vectors, vectors.detach())


class ForgetsItsGrowth(Good):
    """The ids that it grew to are saved nowhere, but have vectors of their own."""

    def __init__(self, num_embeddings, *rest, **options):
        super().__init__(num_embeddings, *rest, **options)
        self.extra = nn.ParameterDict()

    def grow(self, num_embeddings):
        super().grow(num_embeddings)
        self.extra["more"] = nn.Parameter(torch.zeros(num_embeddings))


class DropsTheWrongOnes(FullEmbedding):
    def __init__(self, *sizes, rows, seed, **options):
        del rows, seed
        super().__init__(*sizes, **options)

    def settings(self):
        return {**super().settings(), "rows": 5, "seed": 1}

    def keep(self, ids):
        super().keep(ids + 1)


class KeepsTheirRoom(DropsTheWrongOnes):
    def keep(self, ids):
        FullEmbedding.keep(self, ids)
        self.grow(100)


class DropsHalfAndRefuses(Good):
    def keep(self, ids):
        self.num_embeddings = len(ids)
        super().keep(ids)


class BoundToOneSize(Good):
    """Exported for the size of the example alone, since it is asked for in Python."""

    def vectors(self, ids):
        return super().vectors(ids) if ids.numel() != 4 else super().vectors(ids).flip(0).flip(0)


class OtherVectorsInCode(Good):
    def vectors(self, ids):
        vectors = super().vectors(ids)
        return 2 * vectors if torch.compiler.is_compiling() else vectors


class OtherGradientsInCode(Good):
    def vectors(self, ids):
        vectors = super().vectors(ids)
        if torch.compiler.is_compiling():
            return 3 * vectors - 2 * vectors.detach()
        return vectors


class AsksItsParameters(Good):
    """Needs a number out of a tensor, which breaks a graph."""

    def vectors(self, ids):
        vectors = super().vectors(ids)
        return vectors if float(self.weight.detach().sum()) > -1e9 else 2 * vectors


def maker(kind, **more):
    return lambda **options: kind(12, 3, rows=5, seed=1, **more, **options)


def complaint(kind, **how):
    """The message about tables of a kind, without its prefix."""
    with pytest.raises(AssertionError) as error:
        check_embedding(maker(kind), **how)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{kind.__name__}: ")
    return message.removeprefix(f"{kind.__name__}: ")


SHAPES = "ids of any shape and integer type have vectors: "
FLOATS = "vectors have the requested dtype: "
UNSEEN = "any integer has a finite vector, in training and serving: "
SEED = "the seed of torch determines the vectors: "
GRADIENTS = "gradients are right: "
PADDING = "padding is zero and takes no gradient: "
ADAPTING = "adapting keeps parameters, shapes and finite numbers: "
SIGNS = "non-negative parameters make non-negative vectors: "
COPIES = "a deep copy is independent: "
STATE = "a state restores the vectors: "
SETTINGS = "settings and state recreate the table: "
MEMORY = "memory() counts every byte: "
BUDGET = "the size is as requested, or overrun and repr() say otherwise: "
GROWTH = "a table grows if traits.incremental: "
DROPPING = "keep() drops the other ids only, or raises an error: "


@pytest.mark.parametrize(
    ("kind", "requirement"),
    [
        (OneAxisTooMany, SHAPES + "shape (3, 1) for one id"),
        (OnlyBatches, SHAPES),
        (OnlyWideIds, SHAPES + "TypeError: ids must be int64"),
        (KnowsItsNeighbours, SHAPES),
        (Double, FLOATS + "torch.float64 by default"),
        (NeverHalf, FLOATS + "torch.float32 instead of torch.float16"),
        (NotANumber, UNSEEN + "the vector of -1 is not finite"),
        (OutOfRange, UNSEEN + "IndexError"),
        (ZeroForUnseenInServing, UNSEEN + "vectors in serving and in training"),
        (Seedless, SEED + "vectors of two tables made with one seed"),
        (AlwaysTheSame, SEED + "another seed gives the same vectors"),
        (Detached, GRADIENTS + "vectors take no gradient"),
        (HalfDetached, GRADIENTS + "that of number"),
        (TwiceTheGradient, GRADIENTS + "that of number"),
        (Rounded, GRADIENTS + "that of number"),
        (PaddingNotZero, PADDING + "with padding_idx=0 it is"),
        (PaddingThatLearns, PADDING + "padding_idx=0 has a gradient at weight"),
        (PaddingForgotten, PADDING + "padding_idx=0 becomes None"),
        (AllIsPadding, PADDING + "with padding_idx=0 all vectors are zero"),
        (AdaptsToNewParameters, ADAPTING + "parameters have been replaced"),
        (AdaptsToInfinity, ADAPTING + "weight is not finite"),
        (OtherwiseAfterTraining, ADAPTING + "vectors in serving and in training"),
        (PenaltyOfEachRow, ADAPTING + "penalty has shape (5,)"),
        (Negative, SIGNS + "a vector has -"),
        (Foreign, SIGNS + "one of them is not a parameter of the table"),
        (SharedCopies, COPIES + "training the copy changes weight"),
        (StateOutsideOfTheState, STATE + "vectors: "),
        (ForgetsItsSeed, SETTINGS + "vectors: "),
        (ForgetsItsPadding, SETTINGS + "padding_idx is None, not 0"),
        (SettingsThatAreTensors, SETTINGS + "TypeError: Object of type Tensor is not JSON"),
        (StaysSingle, "a change of dtype keeps the vectors: torch.float32 after"),
        (ServesOthers, "a settled table has the vectors as served: vectors of settled()"),
        (ForgetsTheIndex, MEMORY + "torch.float32: 60 reported, 73 allocated"),
        (CountsFourBytes, MEMORY + "torch.float64: 60 reported, 120 allocated"),
        (HiddenTensor, MEMORY + "torch.float32: 60 reported, 72 allocated"),
        (LargerForServing, MEMORY + "torch.float32: 61 for serving, 60 for training"),
        (TwiceTheRowsInSecret, BUDGET + "repr() does not contain 2.00"),
        (TwiceTheRowsDenied, BUDGET + "overrun is 1, but 120 bytes are 2 times 60"),
        (OverrunOfNothing, BUDGET + "overrun is 2.0 without requested rows"),
        (GrowsWithOtherVectors, GROWTH + "vectors before and after grow()"),
        (GrowsNot, GROWTH + "CelrecError: GrowsNot cannot grow from"),
        (GrowsInSilence, GROWTH + "num_embeddings is 12, not 19"),
        (Shrinks, GROWTH + "grow() to fewer ids raises no CelrecError"),
        (GrowsUnasked, GROWTH + "grow() raises no CelrecError, traits.incremental is False"),
        (NewIdsStayAsTheyAre, GROWTH + "that of 17 is 1 apart"),
        (DropsTheWrongOnes, DROPPING + "vectors before and after keep()"),
        (KeepsTheirRoom, DROPPING + "num_embeddings is 100 where 6 of 12 are kept"),
        (DropsHalfAndRefuses, DROPPING + "keep() raises an error and changes the table"),
        (ForgetsItsGrowth, "a fresh table loads the state of one that has grown: RuntimeError"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_violated_requirement_is_named(kind, requirement):
    assert complaint(kind, capture=False).startswith(requirement)


def test_a_module_that_is_not_an_embedding_is_reported():
    with pytest.raises(AssertionError, match=r"Embedding: ids of .*: it is not a subclass"):
        check_embedding(lambda **options: nn.Embedding(12, 3, **options))


def test_gradients_that_do_not_reduce_the_loss_are_reported_where_they_need_not_be_exact():
    check_embedding(maker(Rounded), exact_row_gradients=False, capture=False)
    message = complaint(RoundedTheWrongWay, exact_row_gradients=False, capture=False)
    assert message.startswith("vectors can be learned: that of 0 is ")


def test_padding_that_is_no_id_has_to_be_refused():
    class Careless(Good):
        def __init__(self, *sizes, padding_idx=None, **options):
            super().__init__(*sizes, **options)
            self.padding_idx = None if padding_idx is None else padding_idx % 12

    message = complaint(Careless, capture=False)
    assert message == PADDING + "padding_idx=12 raises no CelrecError"


@pytest.mark.parametrize(
    ("kind", "requirement"),
    [
        (
            OtherVectorsInCode,
            "exported code gives the same vectors: vectors of 1 ids after train()",
        ),
        (BoundToOneSize, "exported code gives the same vectors: "),
        (AsksItsParameters, "exported code gives the same vectors: "),
        (OtherGradientsInCode, "compiled code gives the same vectors and gradients: gradients of"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_compiled_code_with_other_results_is_reported(kind, requirement):
    assert complaint(kind).startswith(requirement)


@pytest.mark.parametrize("kind", [Good, TwiceTheRows])
def test_a_conforming_table_passes(kind):
    check_embedding(maker(kind), capture=False)


def test_vectors_that_cannot_be_kept_from_negative_numbers_may_say_so():
    with pytest.raises(CelrecError):
        maker(RobeEmbedding, signs=True)().non_negative_parameters()
    check_embedding(maker(RobeEmbedding, signs=True), capture=False)


def test_more_ids_than_are_tried_do_no_harm():
    check_embedding(lambda **options: ModuloEmbedding(10**6, 3, rows=7, **options), capture=False)


def test_the_random_numbers_go_on_as_if_nothing_had_been_checked():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    check_embedding(maker(Good), capture=False)
    assert torch.equal(torch.rand(3), expected)
