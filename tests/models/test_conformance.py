"""What every interaction model has to do alike."""

import copy
import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from celrec import CelrecError
from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.dien import DIEN
from celrec.models.din import DIN
from celrec.models.dot_product import BiasedDotProduct, DotProduct
from celrec.models.interaction import History
from celrec.models.mmoe import MMoE
from celrec.models.neumf import NeuMF
from celrec.models.wide_deep import WideDeep
from tests.models import slow

DIM, FIELDS, LENGTH, HIDDEN, TASKS = 4, 2, 5, (5, 3), 2


def dot_product(dim=DIM, fields=FIELDS):  # noqa: ARG001
    return DotProduct()


def biased_dot_product(dim=DIM, fields=FIELDS):  # noqa: ARG001
    return BiasedDotProduct()


def neumf(dim=DIM, fields=FIELDS):
    return NeuMF(dim, fields, product_dim=2, hidden=HIDDEN)


def wide_deep(dim=DIM, fields=FIELDS):
    return WideDeep(dim, fields, hidden=HIDDEN)


def deepfm(dim=DIM, fields=FIELDS):
    return DeepFM(dim, fields, hidden=HIDDEN)


def mmoe(dim=DIM, fields=FIELDS):
    return MMoE(dim, fields, tasks=TASKS, experts=3, width=4, hidden=HIDDEN)


def din(dim=DIM, fields=FIELDS):
    return DIN(dim, fields, hidden=HIDDEN, attention=HIDDEN)


def dien(dim=DIM, fields=FIELDS):
    return DIEN(dim, fields, hidden=HIDDEN, attention=HIDDEN, auxiliary=HIDDEN)


PRODUCTS, NETWORKS = [dot_product, biased_dot_product], [neumf, wide_deep, deepfm, mmoe]
SEQUENTIAL = [din, dien]
MODELS = [*PRODUCTS, *NETWORKS, *SEQUENTIAL]


@pytest.fixture(params=MODELS, ids=lambda make: make.__name__)
def make(request):
    return request.param


@pytest.fixture(params=SEQUENTIAL, ids=lambda make: make.__name__)
def make_sequential(request):
    return request.param


@pytest.fixture(
    params=[model for model in MODELS if model not in PRODUCTS], ids=lambda m: m.__name__
)
def make_network(request):
    return request.param


def tasks(make):
    """The last axis of predictions, if there is one."""
    return (TASKS,) if make is mmoe else ()


def sample(model, users=(3,), items=(3,), histories=None, of_features=None, **options):
    """Random vectors with these leading axes; those of users for history and features."""
    options = {"fields": FIELDS, "length": LENGTH, "seed": 0, "dtype": torch.float64} | options
    rng = torch.Generator().manual_seed(options["seed"])
    columns = DIM + model.extra_columns
    histories = users if histories is None else histories
    of_features = users if of_features is None else of_features

    def random(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(options["dtype"])

    places = (*histories, options["length"])
    filled = torch.rand(*places, generator=rng) > 0.4
    return slow.Sample(
        random(*users, columns),
        random(*items, columns),
        History(random(*places, columns), filled),
        random(*of_features, options["fields"], columns) if options["fields"] else None,
    )


def single(whole, place):
    """The sample at one place of the broadcast axes, without any batch axis."""
    history, features = whole.history, whole.features
    if history is not None:
        history = History(slow.at(history.vectors, place, 2), slow.at(history.filled, place))
    if features is not None:
        features = slow.at(features, place, 2)
    return slow.Sample(slow.at(whole.user, place), slow.at(whole.item, place), history, features)


def check_against_loop(make, fields, users, items, histories, of_features):
    model = slow.shaken(make(fields=fields))
    whole = sample(model, users, items, histories, of_features, fields=fields)
    leads = [users, items]
    if make in SEQUENTIAL:
        leads.append(histories)
    else:
        whole = whole._replace(history=None)
    if fields and make not in PRODUCTS:
        leads.append(of_features)
    else:
        whole = whole._replace(features=None)
    shape = torch.broadcast_shapes(*leads)
    predicted = model(*whole)
    assert predicted.shape == (*shape, *tasks(make))
    for place in itertools.islice(itertools.product(*map(range, shape)), 12):
        torch.testing.assert_close(predicted[place], model(*single(whole, place)))


# Leading axes of users, items, histories and features.
LAYOUTS = [
    ((), (), (), ()),
    ((3,), (3,), (3,), (3,)),
    ((3, 1), (3, 4), (3, 1), (3, 1)),
    ((3, 1), (3, 4), (3, 1), (3, 4)),  # features of the item
    ((3,), (4, 3), (3,), (3,)),  # candidates in front, as evidence is taken
    ((), (4,), (), ()),
    ((3, 1), (4,), (3, 1), (3, 1)),  # the same items for everyone
    ((3,), (), (3,), (3,)),
    ((1,), (1,), (1,), (1,)),
    ((1, 1), (1, 1), (1, 1), (1, 1)),
    ((0,), (0,), (0,), (0,)),
    ((0, 1), (0, 4), (0, 1), (0, 1)),
    ((3, 1), (3, 0), (3, 1), (3, 1)),
    ((0,), (4, 0), (0,), (0,)),
    ((2, 1, 1, 1, 1), (2, 1, 2, 1, 3), (2, 2, 1, 1, 1), (1, 1, 1, 1, 3)),
]


@pytest.mark.parametrize("leads", LAYOUTS)
def test_leading_axes_broadcast_as_a_loop_would(make, leads):
    for fields in (0, FIELDS):
        check_against_loop(make, fields, *leads)


@st.composite
def any_leads(draw):
    made = draw(st.lists(st.integers(0, 3), max_size=3))
    leads = []
    for _ in range(4):
        own = [draw(st.sampled_from([size, 1])) for size in made]
        leads.append(tuple(own[draw(st.integers(0, len(own))) :]))
    return leads


@given(any_leads(), st.sampled_from([0, FIELDS]))
@settings(max_examples=15)
def test_any_leading_axes_that_go_together_will_do(leads, fields):
    for make in MODELS:
        check_against_loop(make, fields, *leads)


def test_what_is_the_same_for_all_candidates_is_multiplied_once(make_network):
    model = make_network().double()
    whole = sample(model, (3, 1), (3, 40))
    copied = slow.Sample(
        whole.user.expand(-1, 40, -1),
        whole.item,
        History(
            whole.history.vectors.expand(-1, 40, -1, -1), whole.history.filled.expand(-1, 40, -1)
        ),
        whole.features.expand(-1, 40, -1, -1),
    )
    flops = []
    for each in (whole, copied):
        with FlopCounterMode(display=False) as counter:
            model(*each)
        # A target's attention is its own; what that takes is message exactly where it is tested.
        attention = counter.get_flop_counts().get(f"{type(model).__name__}.attention", {})
        flops.append(counter.get_total_flops() - sum(attention.values()))
    assert flops[0] < 0.8 * flops[1]


@pytest.mark.parametrize("fields", [0, FIELDS])
@pytest.mark.parametrize("leads", [((3, 1), (3, 2)), ((2,), (2, 2)), ((), ())])
def test_gradients_are_finite_differences(make, leads, fields):
    model = slow.shaken(make(fields=fields))
    user, item, history, features = sample(model, *leads, fields=fields)
    filled = history.filled.clone()
    if filled.dim() > 1:
        filled[0] = False
        filled[1, ..., -1] = True
    given = [user, item, history.vectors, *([features] if fields else [])]

    def predict(user, item, vectors, features=None):
        return model(user, item, History(vectors, filled), features)

    given = [tensor.requires_grad_() for tensor in given]
    assert torch.autograd.gradcheck(predict, given)


def test_every_input_that_is_looked_at_has_a_gradient(make):
    model = slow.shaken(make())
    whole = sample(model, (6, 1), (6, 5))
    inputs = [whole.user, whole.item, whole.history.vectors, whole.features]
    for tensor in inputs:
        tensor.requires_grad_()
    slopes = torch.autograd.grad(model(*whole).sum(), inputs, allow_unused=True)
    looked_at = [True, True, make in SEQUENTIAL, make not in PRODUCTS]
    assert [slope is not None for slope in slopes] == looked_at
    for slope in slopes:
        if slope is not None:  # each column is used
            assert bool(slope.flatten(0, -2).any(0).all())


def test_every_parameter_takes_part(make_network):
    model = slow.shaken(make_network())
    model(*sample(model, (20, 1), (20, 5))).sum().backward()
    for name, value in model.named_parameters():
        # That of DIEN is for another loss, and a softmax cancels what it adds to all scores alike:
        # the slope of the last bias of attention is nothing but rounding.
        if not name.startswith("next_item.") and name != "attention.rest.3.bias":
            assert value.grad.any(), name


def test_models_that_do_not_look_at_the_history_take_anything_for_it(make):
    if make not in SEQUENTIAL:
        model = make()
        user, item, _, features = sample(model, dtype=torch.float32)
        predicted = [model(user, item, history, features) for history in (None, "anything")]
        assert torch.equal(*predicted)


# What a user did before.


def test_a_missing_history_is_reported(make_sequential):
    model = make_sequential(fields=0)
    with pytest.raises(CelrecError, match=f"history is missing: {type(model).__name__}"):
        model(torch.randn(3, DIM), torch.randn(3, DIM))


@given(
    st.integers(0, 1000),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9),
)
@example(0, [3.4e38])
@example(0, [3.4e38, -3.4e38, 1.0])  # so large that products overflow
@settings(max_examples=40)
def test_what_stands_in_empty_places_never_matters(seed, numbers):
    for make in SEQUENTIAL:
        model = slow.shaken(make()).float()
        user, item, history, features = sample(
            model, (3, 1), (3, 2), seed=seed, dtype=torch.float32
        )
        empty = ~history.filled
        other = history.vectors.clone()
        repeated = itertools.cycle(numbers)
        count = int(empty.sum()) * DIM
        other[empty] = torch.tensor([next(repeated) for _ in range(count)]).view(-1, DIM)
        expected = model(user, item, history, features)
        found = model(user, item, History(other, history.filled), features)
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("number", [0.0, -3.0, 1e6, -1e18])
def test_what_stands_in_empty_places_changes_no_gradient_and_gets_none(make_sequential, number):
    model = slow.shaken(make_sequential())
    whole = sample(model, (6, 1), (6, 2))
    slopes = []
    for fill in (1.0, number):
        vectors = whole.history.vectors.masked_fill(~whole.history.filled.unsqueeze(-1), fill)
        wanted = [tensor.detach().requires_grad_() for tensor in (whole.user, whole.item, vectors)]
        user, item, vectors = wanted
        loss = model(user, item, History(vectors, whole.history.filled), whole.features).sum()
        used = [p for name, p in model.named_parameters() if not name.startswith("next_item.")]
        slopes.append(torch.autograd.grad(loss, [*wanted, *used]))
        assert not slopes[-1][2][~whole.history.filled].any()
    torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize("length", [0, 1, LENGTH])
def test_an_empty_history_gives_finite_predictions_and_gradients(make_sequential, length):
    model = make_sequential()
    user, item, history, features = sample(
        model, (3, 1), (3, 2), length=length, dtype=torch.float32
    )
    nothing = History(history.vectors, torch.zeros_like(history.filled))
    inputs = [user, item, history.vectors, features]
    for tensor in inputs:
        tensor.requires_grad_()
    predicted = model(user, item, nothing, features)
    assert predicted.isfinite().all()
    predicted.sum().backward()
    assert not history.vectors.grad.any()
    for tensor in [user, item, features, *model.parameters()]:
        assert tensor.grad is None or tensor.grad.isfinite().all()


@given(st.integers(0, 1000), st.integers(0, LENGTH), st.integers(1, 5))
@settings(max_examples=30)
def test_longer_padding_changes_nothing(seed, known, more):
    for make in SEQUENTIAL:
        model = slow.shaken(make())
        user, item, history, features = sample(model, (3, 1), (3, 2), seed=seed, length=known)
        filled = torch.ones_like(history.filled)
        padding = torch.randn(3, 1, more, DIM).double()
        longer = History(
            torch.cat([padding, history.vectors], -2),
            torch.cat([torch.zeros(3, 1, more, dtype=torch.bool), filled], -1),
        )
        expected = model(user, item, History(history.vectors, filled), features)
        torch.testing.assert_close(model(user, item, longer, features), expected)


# As evidence for clusters of items.


class IdModel(nn.Module):
    """Clustered items, which are also the history, and full tables for all else."""

    users, items, values = 6, 9, 5

    def __init__(self, make):
        super().__init__()
        self.model = make()
        columns = DIM + self.model.extra_columns
        self.of_users = nn.Embedding(self.users, columns)
        self.of_features = nn.Embedding(self.values, columns)
        self.of_items = ClusteredEmbedding(self.items, columns, max_clusters=6, padding_idx=0)
        self.of_items.start_from(torch.arange(self.items) % 6)

    def loss(self, batch, target):
        """With the given vectors of the targets; the sum over tasks, if there are several."""
        users, _, past, features, ratings = batch
        history = History(self.of_items(past), past != self.of_items.padding_idx)
        predicted = self.model(self.of_users(users), target, history, self.of_features(features))
        if predicted.dim() == target.dim():
            return (predicted - ratings[:, None]).square().sum(-1)
        return (predicted - ratings).square()

    def forward(self, batch):
        return self.loss(batch, self.of_items(batch[1]))


def make_recommender(make):
    torch.manual_seed(0)
    recommender = slow.shaken(IdModel(make))
    batches = []
    for size in (7, LENGTH, 1):
        past = torch.randint(1, IdModel.items, (size, LENGTH))
        empty = torch.randint(0, LENGTH + 1, (size, 1))
        past[torch.arange(LENGTH) < empty] = 0
        item = torch.randint(1, IdModel.items, (size,))
        item[0] = past[0, -1] = 3  # the same item as target and as history
        user = torch.randint(IdModel.users, (size,))
        features = torch.randint(IdModel.values, (size, FIELDS))
        batches.append((user, item, past, features, torch.rand(size).double() * 5))
    return recommender, batches


def test_losses_under_candidate_clusters_are_one_forward_pass_each(make):
    recommender, batches = make_recommender(make)
    table = recommender.of_items
    found = AutogradEvidence(table, recommender, data=batches).losses()
    expected = torch.zeros(IdModel.items, table.num_clusters, dtype=torch.float64)
    for batch in batches:
        for n, item in enumerate(batch[1].tolist()):
            for cluster in range(table.num_clusters):
                one = tuple(part[n : n + 1] for part in batch)
                loss = recommender.loss(one, table.weight[cluster][None])
                expected[item, cluster] += loss.item()
    torch.testing.assert_close(found, expected)


def test_all_candidate_clusters_are_tried_in_one_forward_pass(make):
    recommender, batches = make_recommender(make)
    table, calls = recommender.of_items, []
    recommender.register_forward_hook(lambda *_: calls.append(None))
    AutogradEvidence(table, recommender, data=batches[:1]).losses()
    samples, trial, losses = 1, 3, 1
    assert len(calls) == samples + trial + losses < table.num_clusters


def test_gradients_of_members_are_finite_differences_where_they_are_the_target(make):
    recommender, batches = make_recommender(make)
    table, everyone, step = recommender.of_items, torch.arange(IdModel.items), 1e-6
    found = AutogradEvidence(table, recommender, data=batches).gradients(everyone)
    rows = table(everyone).detach()  # one of its own for every item, as target alone

    def loss_of(item, moved):
        total = 0.0
        for batch in batches:
            targets = torch.where((batch[1] == item)[:, None], moved, rows[batch[1]])
            total += recommender.loss(batch, targets).sum().item()
        return total

    for item in range(1, IdModel.items):
        for column in range(table.embedding_dim):
            way = torch.zeros_like(rows[0])
            way[column] = step
            up, down = loss_of(item, rows[item] + way), loss_of(item, rows[item] - way)
            slope = (up - down) / (2 * step)
            assert found[item, column].item() == pytest.approx(-slope, abs=1e-5, rel=1e-5)


# The mean, and columns beside the vectors.


def zeros(model):
    """A sample in which all vectors are zero."""
    user, item, history, features = sample(model, dtype=torch.float32)
    past = History(torch.zeros_like(history.vectors), history.filled)
    return slow.Sample(
        torch.zeros_like(user), torch.zeros_like(item), past, torch.zeros_like(features)
    )


def of_ratings(make, predicted):
    return predicted[..., 0] if make is mmoe else predicted


@pytest.mark.parametrize("seed", range(5))
def test_vectors_of_zero_are_rated_with_about_the_mean(make, seed):
    torch.manual_seed(seed)
    model = make()
    model.set_mean(3.5)
    predicted = of_ratings(make, model(*zeros(model)))
    if make is dot_product:  # it has no place for a mean
        assert predicted.tolist() == [0] * 3
    elif make is biased_dot_product:
        assert predicted.tolist() == [3.5] * 3
    else:
        assert bool(((predicted - 3.5).abs() < 1).all())


def test_vectors_of_zero_are_rated_with_the_mean_if_all_other_constants_are_zero(make):
    if make is not dot_product:
        model = make()
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "bias" in name:
                    value.zero_()
        model.set_mean(3.5)
        assert of_ratings(make, model(*zeros(model))).tolist() == [3.5] * 3


def test_the_mean_shifts_all_predictions_alike_and_the_last_one_counts(make):
    model = slow.shaken(make())
    whole = sample(model)
    model.set_mean(1.0)
    before = model(*whole)
    model.set_mean(2.5)
    shift = model(*whole) - before
    expected = torch.zeros_like(shift)
    if make is not dot_product:
        of_ratings(make, expected).fill_(1.5)
    torch.testing.assert_close(shift, expected)


def test_a_mean_that_was_set_can_still_be_trained(make):
    model = make()
    trained = [value.requires_grad for value in model.parameters()]
    model.set_mean(3.5)
    assert [value.requires_grad for value in model.parameters()] == trained
    assert all(value.is_leaf for value in model.parameters())


def test_the_extra_column_is_added_and_does_nothing_else(make):
    model = slow.shaken(make())
    if model.extra_columns:
        whole = sample(model)
        inputs = [whole.user, whole.item, *([] if make in PRODUCTS else [whole.features])]
        predicted = model(*whole)
        for tensor in inputs:
            tensor[..., -1] += 0.75
            after = model(*whole)
            times = FIELDS if tensor is whole.features else 1
            torch.testing.assert_close(after, predicted + 0.75 * times)
            predicted = after


def test_which_models_want_extra_columns():
    wanting = {make.__name__ for make in MODELS if make().extra_columns}
    assert wanting == {"biased_dot_product", "wide_deep", "deepfm"}
    assert {make().extra_columns for make in MODELS} == {0, 1}


# Saved, copied, exported.


def network(*widths):
    """The numbers of linear layers one after the other."""
    return sum((a + 1) * b for a, b in itertools.pairwise(widths))


def tower(inputs):
    return network(inputs, *HIDDEN, 1) + len(HIDDEN)


def mixture(inputs):
    return network(inputs, 3 * 4) + network(inputs, TASKS * 3) + TASKS * tower(4)


COUNTS = {
    dot_product: lambda _, __: 0,
    biased_dot_product: lambda _, __: 1,
    neumf: lambda dim, fields: (
        network(2 * (dim - 2) + fields * dim, *HIDDEN) + network(2 + HIDDEN[-1], 1)
    ),
    wide_deep: lambda dim, fields: tower((2 + fields) * dim),
    deepfm: lambda dim, fields: tower((2 + fields) * dim),
    mmoe: lambda dim, fields: mixture((2 + fields) * dim),
    din: lambda dim, fields: tower(4 * dim) + tower((5 + fields) * dim),
    dien: lambda dim, fields: (
        (6 * dim * dim + 6 * dim)  # the reader
        + (network(dim, 3 * dim) + 3 * dim * dim)  # what follows the evolution
        + (tower(4 * dim) + tower(2 * dim) + tower((5 + fields) * dim))
    ),
}


def test_nothing_that_grows_with_ids_is_hidden_in_it(make):
    for dim, fields in itertools.product([3, 8], [0, 1, 3]):
        held = make(dim, fields).state_dict().values()
        assert sum(value.numel() for value in held) == COUNTS[make](dim, fields)


def test_predicting_leaves_nothing_behind(make):
    model = make()
    before = copy.deepcopy(model.state_dict())
    held = set(vars(model))
    rng = torch.get_rng_state()
    first, second = (model(*sample(model, dtype=torch.float32)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), rng)
    assert set(vars(model)) == held
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_training_and_evaluation_are_alike(make):
    model = make()
    whole = sample(model, dtype=torch.float32)
    assert torch.equal(model.train()(*whole), model.eval()(*whole))


def test_a_seed_gives_the_same_model(make_network):
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(make_network())
    whole = sample(models[0], dtype=torch.float32)
    first, same, other = (model(*whole) for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_saved_model_predicts_the_same_in_another_one(make, tmp_path):
    model, other = make(), make()
    model.set_mean(3.5)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    whole = sample(model, dtype=torch.float32)
    assert torch.equal(model(*whole), other(*whole))


def test_a_copy_predicts_the_same_and_is_independent(make):
    model = make()
    whole = sample(model, dtype=torch.float32)
    copied, before = copy.deepcopy(model), model(*whole)
    assert torch.equal(copied(*whole), before)
    with torch.no_grad():
        for value in copied.state_dict().values():
            value.add_(1)
    assert torch.equal(model(*whole), before)
    if make is not dot_product:
        assert not torch.equal(copied(*whole), before)


def test_brain_floats_give_about_the_same(make):
    torch.manual_seed(0)
    model = make()
    whole = sample(model, (3, 1), (3, 2), dtype=torch.float32)
    expected = model(*whole)
    narrow = sample(model, (3, 1), (3, 2), dtype=torch.bfloat16)
    leaf = narrow.user.requires_grad_()
    predicted = model.to(torch.bfloat16)(*narrow)
    assert predicted.dtype == torch.bfloat16
    assert predicted.isfinite().all()
    torch.testing.assert_close(predicted.float(), expected, rtol=0.1, atol=0.2)
    predicted.sum().backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:The tensor attributes self.reader._flat_weights")
def test_an_exported_model_predicts_the_same(make):
    model = make()
    example, other = (sample(model, (3, 1), (3, 2), seed=s, dtype=torch.float32) for s in (1, 2))
    exported = torch.export.export(model, tuple(example)).module()
    for whole in (example, other):
        torch.testing.assert_close(exported(*whole), model(*whole))
