import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from celrec import CelrecError, Clusterer, clusterize, declusterize
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import ClusteredEmbeddingBag
from celrec.embeddings.personal import BiasedEmbedding

USERS, ITEMS, TAGS, DIM = 7, 20, 12, 4


class Model(nn.Module):
    """Somebody's model: a table alone, one in a dict, and bags."""

    def __init__(self, seed=0, mode="mean", padding_idx=None, dtype=None):
        super().__init__()
        torch.manual_seed(seed)
        self.users = nn.Embedding(USERS, DIM, dtype=dtype)
        item = nn.Embedding(ITEMS, DIM, padding_idx=padding_idx, dtype=dtype)
        self.tables = nn.ModuleDict({"item": item})
        self.tags = nn.EmbeddingBag(TAGS, DIM, mode=mode, padding_idx=padding_idx, dtype=dtype)
        self.layer = nn.Linear(3 * DIM, 1, dtype=dtype)

    def forward(self, batch):
        user, item, tags, _ = batch
        parts = self.users(user), self.tables["item"](item), self.tags(tags)
        return self.layer(torch.cat(parts, -1).tanh()).squeeze(-1)


ROWS = {"tables.item": 5, "tags": "25%"}


def make_batch(seed=0, size=60):
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randint(USERS, (size,), generator=rng),
        torch.randint(ITEMS, (size,), generator=rng),
        torch.randint(TAGS, (size, 3), generator=rng),
        torch.randn(size, generator=rng),
    )


def squared(model):
    return lambda batch: (model(batch) - batch[-1]) ** 2


def test_named_tables_are_replaced_in_place_and_others_are_not():
    model = Model()
    users = model.users
    clusterers = clusterize(model, ROWS)
    assert list(clusterers) == list(ROWS)
    assert all(isinstance(clusterer, Clusterer) for clusterer in clusterers.values())
    item, tags = model.tables["item"], model.tags
    assert isinstance(item, ClusteredEmbedding)
    assert isinstance(tags, ClusteredEmbeddingBag)
    assert clusterers["tables.item"].table is item
    assert clusterers["tags"].table is tags.table
    assert (item.num_embeddings, item.embedding_dim, item.num_clusters) == (ITEMS, DIM, 5)
    assert (tags.num_embeddings, tags.embedding_dim, tags.table.num_clusters) == (TAGS, DIM, 3)
    assert model.users is users
    assert model(make_batch()).shape == (60,)


@pytest.mark.parametrize(
    ("given", "rows"),
    [(5, 5), ("5", 5), ("25%", 5), ("1%", 1), (" 12.5% ", 2), (1000, 20), ("100%", 20)],
)
def test_rows_are_a_number_or_a_share(given, rows):
    model = Model()
    clusterize(model, {"tables.item": given})
    assert model.tables["item"].num_clusters == len(model.tables["item"].weight) == rows


@given(
    seed=st.integers(0, 1000),
    rows=st.tuples(st.integers(1, ITEMS), st.integers(1, TAGS)),
    mode=st.sampled_from(["sum", "mean", "max"]),
    padding=st.sampled_from([None, 0, 3]),
    start=st.sampled_from(["learned", "one"]),
)
def test_plain_tables_again_predict_as_the_clustered_ones(seed, rows, mode, padding, start):
    model = Model(seed, mode, padding)
    clusterize(model, {"tables.item": rows[0], "tags": rows[1]}, start=start)
    batch = make_batch(seed)
    clustered = model(batch)
    again = declusterize(model)
    assert again is model
    assert type(model.tables["item"]) is nn.Embedding
    assert type(model.tags) is nn.EmbeddingBag
    assert torch.equal(model(batch), clustered)
    assert len(model.tables["item"].weight) == ITEMS
    if padding is not None:
        assert model.tables["item"].weight[padding].eq(0).all()


@given(seed=st.integers(0, 1000), padding=st.sampled_from([None, 0, 3]))
def test_as_many_clusters_as_ids_give_the_learned_tables_back(seed, padding):
    model = Model(seed, padding_idx=padding)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    before = model(make_batch(seed))
    clusterize(model, {"tables.item": ITEMS, "tags": "100%"})
    torch.testing.assert_close(model(make_batch(seed)), before)
    declusterize(model)
    after = model.state_dict()
    assert weights.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in weights.items())


def test_more_clusters_hold_more_of_what_was_learned():
    batch, errors = make_batch(size=500), []
    for rows in (1, 2, 4, 8, 16, 20):
        model = Model()
        before = model(batch)
        table = model.tables["item"].weight.clone()
        clusterize(model, {"tables.item": rows})
        vectors = model.tables["item"](torch.arange(ITEMS))
        gaps = (vectors - table).norm(), (model(batch) - before).abs().max()
        errors.append(tuple(float(gap.detach()) for gap in gaps))
    distances = [distance for distance, _ in errors]
    assert distances == sorted(distances, reverse=True)
    assert errors[-1] == (0, 0)
    assert distances[0] > 1


def test_interactions_say_whose_rows_are_kept():
    counts = torch.ones(ITEMS)
    counts[:4] = 10_000
    model = Model()
    learned = model.tables["item"].weight.detach().clone()
    clusterize(model, {"tables.item": 4}, interactions={"tables.item": counts})
    vectors = model.tables["item"](torch.arange(ITEMS)).detach()
    gaps = (vectors - learned).norm(dim=1)
    assert gaps[:4].max() < 0.01
    assert gaps[4:].mean() > 0.5


def test_untrained_tables_start_in_one_cluster_with_a_row_of_the_model():
    model = Model(padding_idx=0)
    made = model.tables["item"].weight.detach().clone()
    clusterize(model, ROWS, start="one")
    item = model.tables["item"]
    assert (item.num_clusters, item.max_clusters) == (1, 5)
    assert model.tags.table.num_clusters == 1
    assert item.assignment.eq(0).all()
    assert torch.equal(item.weight.detach(), made[1:6])


@pytest.mark.parametrize("padding", [0, 3, -1])
def test_padding_stays_zero_and_takes_no_gradient(padding):
    model = Model(padding_idx=padding)
    clusterize(model, ROWS)
    item = model.tables["item"]
    assert item.padding_idx == padding % ITEMS
    assert model.tags.padding_idx == padding % TAGS
    vectors = item(torch.tensor([padding % ITEMS]))
    assert vectors.eq(0).all()
    vectors.sum().backward()
    assert item.weight.grad.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_type_mode_and_trainability_are_kept_both_ways(dtype):
    model = Model(dtype=dtype).eval()
    model.tables["item"].weight.requires_grad_(False)
    clusterize(model, ROWS)
    for _ in range(2):
        assert model.tables["item"].weight.dtype == model.tags.weight.dtype == dtype
        assert not model.tables["item"].weight.requires_grad
        assert model.tags.weight.requires_grad
        assert not model.tables["item"].training
        assert not model.tags.training
        assert model(make_batch()).dtype == dtype
        declusterize(model)


def test_options_of_bags_are_kept_both_ways():
    model = nn.Sequential(nn.EmbeddingBag(9, 2, mode="sum", include_last_offset=True))
    ids, offsets = torch.arange(9), torch.tensor([0, 2, 2, 9])
    clusterize(model, {"0": 3})
    assert (model[0].mode, model[0].include_last_offset) == ("sum", True)
    before = model[0](ids, offsets)
    declusterize(model)
    assert (model[0].mode, model[0].include_last_offset) == ("sum", True)
    torch.testing.assert_close(model[0](ids, offsets), before)


def test_the_parameter_stays_so_whoever_holds_it_sees_the_rows():
    model = Model()
    weight = model.tables["item"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    penalty = lambda: sum(w.square().sum() for w in [weight])  # noqa: E731  (as others keep them)
    squared(model)(make_batch()).mean().backward()
    clusterize(model, ROWS)
    assert model.tables["item"].weight is weight
    assert weight.shape == (5, DIM)
    assert weight.grad is None
    before = weight.detach().clone()
    (squared(model)(make_batch()).mean() + penalty()).backward()
    assert weight.grad.shape == (5, DIM)
    optimizer.step()
    assert not torch.equal(weight, before)
    declusterize(model)
    assert model.tables["item"].weight is weight
    assert weight.shape == (ITEMS, DIM)


def test_the_memory_of_an_optimiser_is_shared_as_the_rows_are():
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for seed in range(5):
        squared(model)(make_batch(seed)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weight = model.tables["item"].weight
    before = copy.deepcopy(optimizer.state[weight])
    kept = copy.deepcopy(optimizer.state[model.users.weight])
    clusterize(model, ROWS, squared(model), optimizer)
    assignment = model.tables["item"].assignment[:-1]
    for name in ("exp_avg", "exp_avg_sq"):
        expected = torch.stack([before[name][assignment == k].mean(0) for k in range(5)])
        torch.testing.assert_close(optimizer.state[weight][name], expected)
    assert optimizer.state[weight]["step"] == before["step"]
    assert torch.equal(optimizer.state[model.users.weight]["exp_avg"], kept["exp_avg"])
    squared(model)(make_batch()).mean().backward()
    optimizer.step()
    assert weight.isfinite().all()


@pytest.mark.parametrize("start", ["learned", "one"])
def test_training_goes_on_with_an_optimiser_from_before(start):
    model, batches = Model(), [make_batch(seed) for seed in range(4)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = {"split_every": 5, "reassign_every": 15}
    clusterers = clusterize(model, ROWS, squared(model), optimizer, start=start, **schedule)
    before = sum(float(squared(model)(batch).detach().sum()) for batch in batches)
    kinds = set()
    for step in range(30):
        batch = batches[step % 4]
        squared(model)(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for clusterer in clusterers.values():
            assert clusterer.optimizer is optimizer
            kinds |= {move.kind for move in clusterer.step(batch)}
    assert kinds == ({"reassign"} if start == "learned" else {"split", "reassign"})
    assert [clusterer.table.num_clusters for clusterer in clusterers.values()] == [5, 3]
    assert sum(float(squared(model)(batch).detach().sum()) for batch in batches) < 0.95 * before


def test_evidence_is_taken_from_given_data_in_evaluation_mode():
    model = Model()
    model.drop = nn.Dropout(0.5)
    objective = lambda batch: model.drop(squared(model)(batch))  # noqa: E731
    batches = [make_batch(seed) for seed in range(3)]
    clusterers = clusterize(model, ROWS, objective, data=batches)
    for name, column in (("tables.item", 1), ("tags", 2)):
        evidence = clusterers[name].evidence
        expected = torch.zeros(ITEMS if column == 1 else TAGS)
        for batch in batches:
            for one in batch[column]:
                expected[one.unique()] += 1
        assert torch.equal(evidence.interactions(), expected.long())
        assert torch.equal(evidence.own_losses(), evidence.own_losses())
    assert model.drop.training


def test_a_table_used_in_two_places_is_replaced_in_both():
    model = Model()
    model.same = model.tables["item"]
    clusterize(model, {"same": 5})
    assert model.same is model.tables["item"]
    assert isinstance(model.same, ClusteredEmbedding)
    declusterize(model)
    assert model.same is model.tables["item"]
    assert type(model.same) is nn.Embedding


def test_an_old_table_that_somebody_holds_is_as_it_was():
    model = Model()
    old = model.tables["item"]
    before = old(torch.arange(ITEMS)).detach()
    clusterers = clusterize(model, ROWS, squared(model), split_every=1)
    assert torch.equal(old(torch.arange(ITEMS)), before)
    held = clusterers["tables.item"].table
    vectors = held(torch.arange(ITEMS)).detach()
    declusterize(model)
    with torch.no_grad():
        model.tables["item"].weight.add_(1)
    assert torch.equal(held(torch.arange(ITEMS)), vectors)


def test_unseen_ids_share_the_row_nearest_to_the_mean():
    model = Model()
    clusterize(model, ROWS)
    item = model.tables["item"]
    mean = item(torch.arange(ITEMS)).detach().mean(0)
    gaps = (item.weight.detach() - mean).norm(dim=1)
    assert item.unseen_cluster == int(gaps.argmin())


def test_a_clusterer_without_objective_says_what_is_missing():
    model = Model()
    clusterers = clusterize(model, ROWS, reassign_every=1)
    with pytest.raises(CelrecError, match="objective is missing: give clusterize"):
        clusterers["tags"].step(make_batch())


def tied(model):
    model.again = nn.Embedding(ITEMS, DIM)
    model.again.weight = model.tables["item"].weight


def tied_to_a_layer(model):
    model.scores = nn.Linear(DIM, ITEMS)
    model.scores.weight = model.tables["item"].weight


class OwnKind(nn.Embedding):
    def forward(self, ids):
        return 2 * super().forward(ids)


def put(**options):
    def change(model):
        model.tables["item"] = nn.Embedding(ITEMS, DIM, **options)

    return change


def put_own_kind(model):
    model.tables["item"] = OwnKind(ITEMS, DIM)


def put_padding_that_is_not_zero(model):
    model.tables["item"] = nn.Embedding(ITEMS, DIM, padding_idx=2)
    nn.init.ones_(model.tables["item"].weight)


def put_hook(model):
    model.tables["item"].register_forward_hook(lambda *_: None)


def diverge(model):
    model.tables["item"].weight.data[3] = torch.nan


def nothing(model):
    del model


@pytest.mark.parametrize(
    ("change", "rows", "options", "complaint"),
    [
        (nothing, {"item": 5}, {}, "called 'item'; it has users, tables.item, tags"),
        (nothing, {"": 5}, {}, "called ''"),
        (nothing, {"layer": 5}, {}, "called 'layer'"),
        (nothing, {"tables.item": 0}, {}, r"rows\['tables.item'\] must be positive, not 0"),
        (nothing, {"tables.item": "-1%"}, {}, "must be positive"),
        (nothing, {"tables.item": "many"}, {}, "a number of rows or a share such as '1%'"),
        (nothing, {"tables.item": "inf%"}, {}, "a number of rows or a share such as '1%'"),
        (nothing, ROWS, {"start": "two"}, "start must be one of learned, one, not 'two'"),
        (nothing, ROWS, {"interactions": {"users": torch.ones(7)}}, "'users' is not one of"),
        (nothing, ROWS, {"interactions": {"tags": torch.ones(7)}}, "table 'tags': interactions"),
        (tied, ROWS, {}, "the weight of 'tables.item' is also 'again.weight'; untie them"),
        (tied_to_a_layer, ROWS, {}, "the weight of 'tables.item' is also 'scores.weight'"),
        (put(max_norm=1.0), ROWS, {}, "has max_norm=1.0"),
        (put(scale_grad_by_freq=True), ROWS, {}, "has scale_grad_by_freq=True"),
        (put(sparse=True), ROWS, {}, "has sparse=True"),
        (put_own_kind, ROWS, {}, "is a OwnKind, not an nn.Embedding itself"),
        (put_padding_that_is_not_zero, ROWS, {}, "padding_idx of 2 whose row is not zero"),
        (put_hook, ROWS, {}, "has hooks, which would be lost"),
        (diverge, ROWS, {}, "table 'tables.item': vectors must be finite"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_nothing_is_changed(
    change, rows, options, complaint
):
    model = Model()
    change(model)
    before = dict(model.named_modules(remove_duplicate=False))
    shapes = {name: value.shape for name, value in model.named_parameters()}
    with pytest.raises(CelrecError, match=complaint) as told:
        clusterize(model, rows, **options)
    assert "\n" not in str(told.value)
    assert dict(model.named_modules(remove_duplicate=False)) == before
    assert {name: value.shape for name, value in model.named_parameters()} == shapes


def test_one_table_has_one_name():
    model = Model()
    model.same = model.tables["item"]
    with pytest.raises(CelrecError, match=r"'tables.item' and 'same' are one table; name it once"):
        clusterize(model, {"tables.item": 5, "same": 5})


def test_an_optimiser_has_to_hold_the_weights():
    model = Model()
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)
    with pytest.raises(CelrecError, match=r"optimizer does not hold the weight of 'tables.item'"):
        clusterize(model, ROWS, squared(model), optimizer)
    model.requires_grad_(False)
    clusterize(model, ROWS, squared(model), optimizer)
    assert isinstance(model.tables["item"], ClusteredEmbedding)


def test_a_table_that_is_part_of_another_is_left_to_that():
    model = nn.Sequential(BiasedEmbedding(ClusteredEmbedding(5, 2, max_clusters=2)))
    declusterize(model)
    assert isinstance(model[0].rows, ClusteredEmbedding)


def test_a_table_alone_cannot_be_replaced_in_place():
    table = ClusteredEmbedding(5, 2, max_clusters=2)
    for model in (table, ClusteredEmbeddingBag(table)):
        with pytest.raises(CelrecError, match="cannot be replaced in place"):
            declusterize(model)
