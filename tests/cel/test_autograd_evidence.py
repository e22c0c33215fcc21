import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from celrec import CelrecError
from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.embeddings.clustered import ClusteredEmbedding

USERS, ITEMS, DIM = 7, 9, 4


def make_table(clusters=4, **options):
    torch.manual_seed(0)
    table = ClusteredEmbedding(ITEMS, DIM, max_clusters=6, **options)
    table.start_from(torch.arange(ITEMS) % clusters)
    return table


def make_batches(sizes=(12, 12, 5), seed=0):
    """Users, items and targets; ids repeat within and between batches, and item 8 never occurs."""
    rng = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randint(USERS, (size,), generator=rng),
            torch.randint(ITEMS - 1, (size,), generator=rng),
            torch.rand(size, generator=rng).mul(5),
        )
        for size in sizes
    ]


class Dot(nn.Module):
    """(u·v − x)², summed up in a way that takes further axes in front."""

    def __init__(self, table):
        super().__init__()
        self.items = table
        self.users = nn.Parameter(torch.randn(USERS, DIM))

    def predict(self, user, item):
        return (user * item).sum(-1)

    def forward(self, batch):
        users, items, targets = batch
        return (self.predict(self.users[users], self.items(items)) - targets) ** 2


class LastAxisByNumber(Dot):
    """Names the axis by a number that is wrong with one more axis, and then need not fail."""

    def predict(self, user, item):
        return (user * item).sum(1)


class Flat(Dot):
    """Flattens what it gets."""

    def predict(self, user, item):
        return (user * item).sum(-1).view(-1)


class Bilinear(Dot):
    """Needs both sides to have the same shape."""

    def predict(self, user, item):
        return functional.bilinear(user, item, torch.eye(DIM)[None]).squeeze(1)


class Concatenated(Dot):
    """u·v by a layer on both vectors in a row, from shapes that are taken apart."""

    def predict(self, user, item):
        samples, dim = item.shape
        both = torch.cat([user, item], 1).view(samples, 2, dim)
        return (both[:, 0] * both[:, 1]).sum(1)


class TorchLoss(Dot):
    """The loss of torch that doubts shapes with a warning."""

    def forward(self, batch):
        users, items, targets = batch
        predicted = self.predict(self.users[users], self.items(items))
        return functional.mse_loss(predicted, targets, reduction="none")


MODELS = [Dot, LastAxisByNumber, Flat, Bilinear, Concatenated, TorchLoss]


def by_hand(model, batches):
    """The loss of every item under the row of every cluster, sample by sample."""
    losses = torch.zeros(ITEMS, model.items.num_clusters)
    for batch in batches:
        for user, item, target in zip(*batch, strict=True):
            for k in range(model.items.num_clusters):
                predicted = model.users[user] @ model.items.weight[k]
                losses[item, k] += float((predicted.detach() - target) ** 2)
    return losses


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sizes", [(12, 12, 5), (1, 12), (DIM, 12), (DIM,), (2, 2), (1,)])
def test_losses_are_those_of_one_candidate_at_a_time_whether_or_not_it_broadcasts(model, sizes):
    model, batches = model(make_table()), make_batches(sizes)
    evidence = AutogradEvidence(model.items, model, data=batches)
    torch.testing.assert_close(evidence.losses(), by_hand(model, batches))


@pytest.mark.parametrize("model", MODELS)
def test_what_is_found_out_about_broadcasting_holds_for_other_rows(model):
    # With equal rows, and with zeros, wrong axes can give the right losses.
    model, batches = model(make_table(clusters=1)), make_batches((DIM,))
    with torch.no_grad():
        model.items.weight.zero_()
    evidence = AutogradEvidence(model.items, model, data=batches)
    torch.testing.assert_close(evidence.losses(), by_hand(model, batches))
    model.items.start_from(torch.arange(ITEMS) % 6)
    nn.init.normal_(model.items.weight)
    torch.testing.assert_close(evidence.losses(), by_hand(model, batches))


def test_a_model_that_broadcasts_is_not_asked_once_per_cluster():
    def calls(model, clusters):
        table = make_table(clusters)
        model, asked = model(table), []

        def objective(batch):
            asked.append(batch)
            return model(batch)

        AutogradEvidence(table, objective, data=make_batches((5,))).losses()
        return len(asked)

    assert calls(Dot, 6) == calls(Dot, 3)
    assert calls(Bilinear, 6) == calls(Bilinear, 3) + 3


def test_large_batches_are_asked_about_few_clusters_at_a_time_with_the_same_result():
    table = make_table()
    model, batches = Dot(table), make_batches((400_000,))
    users, items, targets = batches[0]
    expected = torch.zeros(ITEMS, 4)
    for k in range(4):
        loss = (model.users[users] @ table.weight[k] - targets).detach() ** 2
        expected[:, k] = torch.bincount(items, loss, minlength=ITEMS)
    found = AutogradEvidence(table, model, data=batches).losses()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_those_of_a_table_with_a_row_for_every_id(model):
    model, batches = model(make_table()), make_batches()
    everyone = torch.arange(ITEMS)
    full = model.items(everyone).detach().requires_grad_()
    loss = 0
    for users, items, targets in batches:
        loss = loss + ((model.users[users] * full[items]).sum(-1) - targets).square().sum()
    (slope,) = torch.autograd.grad(loss, full)
    evidence = AutogradEvidence(model.items, model, data=batches)
    torch.testing.assert_close(evidence.gradients(everyone), -slope)
    some = torch.tensor([5, 2, 8])
    torch.testing.assert_close(evidence.gradients(some), -slope[some])


def test_gradients_are_the_slopes_of_losses_to_either_side():
    model, batches = Dot(make_table()).double(), make_batches()
    table, step = model.items, 1e-5
    evidence = AutogradEvidence(table, model, data=batches)
    for j in range(ITEMS):
        gradient = evidence.gradients(torch.tensor([j]))[0]
        for d in range(DIM):
            own = int(table.row_of(torch.tensor(j)))
            sides = []
            for way in (step, -step):
                moved = copy.deepcopy(model)
                with torch.no_grad():
                    moved.items.weight[own, d] += way
                sides.append(AutogradEvidence(moved.items, moved, data=batches).own_losses()[j])
            slope = (sides[0] - sides[1]) / (2 * step)
            assert float(gradient[d]) == pytest.approx(-float(slope), abs=1e-5)


def test_own_losses_and_interactions_are_summed_up_by_id():
    model, batches = Dot(make_table()), make_batches()
    evidence = AutogradEvidence(model.items, model, data=batches)
    items = torch.cat([items for _, items, _ in batches])
    assert evidence.interactions().tolist() == torch.bincount(items, minlength=ITEMS).tolist()
    own = by_hand(model, batches)[torch.arange(ITEMS), model.items.assignment[:-1].long()]
    torch.testing.assert_close(evidence.own_losses(), own)
    assert own[8] == 0


def test_evidence_is_of_the_latest_batches_or_of_all_data():
    model, batches = Dot(make_table()), make_batches((3, 4, 5, 6))
    recent = AutogradEvidence(model.items, model, window=2)
    complete = AutogradEvidence(model.items, model, data=batches[:1], window=2)
    for batch in batches:
        recent.observe(batch)
        complete.observe(batch)
    assert int(recent.interactions().sum()) == 5 + 6
    assert int(complete.interactions().sum()) == 3
    torch.testing.assert_close(recent.losses(), by_hand(model, batches[2:]))


def test_without_a_batch_there_is_nothing_to_tell():
    model = Dot(make_table())
    evidence = AutogradEvidence(model.items, model)
    assert evidence.losses().eq(0).all()
    assert evidence.gradients(torch.arange(ITEMS)).eq(0).all()
    assert evidence.interactions().eq(0).all()


def test_losses_may_have_several_axes():
    table = make_table()
    users = torch.randn(5, 1, DIM)
    ids, targets = torch.randint(ITEMS, (5, 3)), torch.rand(5, 3)
    flat = AutogradEvidence(
        table,
        lambda _: (
            (
                (users.expand(5, 3, DIM).reshape(15, DIM) * table(ids.view(-1))).sum(-1)
                - targets.view(-1)
            )
            ** 2
        ),
        data=[None],
    )
    deep = AutogradEvidence(
        table, lambda _: ((users * table(ids)).sum(-1) - targets) ** 2, data=[None]
    )
    everyone = torch.arange(ITEMS)
    torch.testing.assert_close(deep.losses(), flat.losses())
    torch.testing.assert_close(deep.gradients(everyone), flat.gradients(everyone))
    assert torch.equal(deep.interactions(), flat.interactions())


def test_look_ups_of_another_shape_are_left_alone():
    table = make_table()
    history = torch.randint(ITEMS, (12, 5))
    batches = make_batches((12,))
    users, items, targets = batches[0]
    vectors = torch.randn(USERS, DIM)

    def objective(batch):
        users, items, targets = batch
        interest = vectors[users] + table(history).mean(1)
        return ((interest * table(items)).sum(-1) - targets) ** 2

    evidence = AutogradEvidence(table, objective, data=batches)
    interest = vectors[users] + table(history).mean(1).detach()
    losses, gradients = torch.zeros(ITEMS, 4), torch.zeros(ITEMS, DIM)
    for n, item in enumerate(items):
        for k in range(4):
            losses[item, k] += (interest[n] @ table.weight[k].detach() - targets[n]) ** 2
        error = targets[n] - interest[n] @ table(item).detach()
        gradients[item] += 2 * error * interest[n]
    torch.testing.assert_close(evidence.losses(), losses)
    torch.testing.assert_close(evidence.gradients(torch.arange(ITEMS)), gradients)
    assert int(evidence.interactions().sum()) == 12


def test_a_table_asked_twice_for_the_same_ids_counts_them_once():
    table = make_table()
    ids, targets = torch.tensor([0, 3, 3, 5]), torch.rand(4)

    def objective(_):
        return (table(ids).square().sum(-1) + table(ids).sum(-1) - targets) ** 2

    evidence = AutogradEvidence(table, objective, data=[None])
    assert evidence.interactions().tolist() == [1, 0, 0, 2, 0, 1, 0, 0, 0]
    own = evidence.losses()[torch.arange(ITEMS), table.assignment[:-1].long()]
    torch.testing.assert_close(own, evidence.own_losses())
    full = table(torch.arange(ITEMS)).detach().requires_grad_()
    loss = (full[ids].square().sum(-1) + full[ids].sum(-1) - targets).square().sum()
    (slope,) = torch.autograd.grad(loss, full)
    torch.testing.assert_close(evidence.gradients(torch.arange(ITEMS)), -slope)


def test_of_a_pair_that_is_compared_the_first_counts_and_the_other_is_left_alone():
    table = make_table()
    users = torch.randn(12, DIM)
    better, worse = torch.randint(ITEMS, (2, 12))

    def objective(_):
        gap = (users * table(better)).sum(-1) - (users * table(worse)).sum(-1)
        return -functional.logsigmoid(gap)

    evidence = AutogradEvidence(table, objective, data=[None])
    full = table(torch.arange(ITEMS)).detach().requires_grad_()
    against = (users * table(worse)).sum(-1).detach()
    loss = -functional.logsigmoid((users * full[better]).sum(-1) - against)
    (slope,) = torch.autograd.grad(loss.sum(), full)
    losses = torch.zeros(ITEMS, 4)
    for n, item in enumerate(better):
        scores = table.weight[:4].detach() @ users[n]
        losses[item] += -functional.logsigmoid(scores - against[n])
    torch.testing.assert_close(evidence.losses(), losses)
    torch.testing.assert_close(evidence.gradients(torch.arange(ITEMS)), -slope)
    assert torch.equal(evidence.interactions(), torch.bincount(better, minlength=ITEMS))


def test_unseen_ids_and_padding_do_not_count():
    table = make_table(padding_idx=2)
    ids = torch.tensor([-1, 2, 3, 99, 3])
    evidence = AutogradEvidence(table, lambda _: (table(ids).sum(-1) - 1) ** 2, data=[None])
    others = torch.tensor([0, 1, 2, 4, 5, 6, 7, 8])
    assert evidence.interactions().tolist() == [0, 0, 0, 2, 0, 0, 0, 0, 0]
    assert evidence.losses()[others].eq(0).all()
    assert evidence.losses()[3].ne(0).all()
    assert evidence.gradients(others).eq(0).all()
    assert evidence.gradients(torch.tensor([3])).ne(0).all()


@pytest.mark.parametrize("ask", ["losses", "own_losses", "interactions", "gradients"])
def test_an_objective_without_one_loss_per_sample_is_refused(ask):
    model = Dot(make_table())
    evidence = AutogradEvidence(
        model.items, lambda batch: model(batch).mean(), data=make_batches(), model=model
    )
    arguments = [torch.arange(ITEMS)] if ask == "gradients" else []
    with pytest.raises(CelrecError, match=r"shape \(\) of its losses; give one loss per sample"):
        getattr(evidence, ask)(*arguments)
    assert model.training


class Noisy(Dot):
    """With dropout, and a layer that is frozen as one does when fine-tuning."""

    def __init__(self, table):
        super().__init__(table)
        self.dropout, self.frozen = nn.Dropout(0.5), nn.Dropout(0.5)
        self.frozen.eval()

    def predict(self, user, item):
        return super().predict(self.dropout(user), self.frozen(item))


def test_evidence_is_taken_in_evaluation_mode_and_the_modes_are_as_before_afterwards():
    model, batches = Noisy(make_table()), make_batches()
    everyone = torch.arange(ITEMS)
    assert not torch.equal(model(batches[0]), model(batches[0]))
    evidence = AutogradEvidence(model.items, model, data=batches, model=model)
    torch.testing.assert_close(evidence.losses(), by_hand(model, batches))
    for ask in (evidence.losses, evidence.own_losses, lambda: evidence.gradients(everyone)):
        assert torch.equal(ask(), ask())
    assert [model.training, model.dropout.training, model.frozen.training] == [True, True, False]
    model.eval()
    evidence.losses()
    assert not model.training


def test_an_objective_that_fails_leaves_the_model_as_it_was():
    model = Noisy(make_table())
    before = model.items(torch.arange(ITEMS))

    def objective(batch):
        model(batch)
        if asked:
            raise ZeroDivisionError
        asked.append(batch)
        return model(batch)

    asked = []
    evidence = AutogradEvidence(model.items, objective, data=make_batches(), model=model)
    with pytest.raises(ZeroDivisionError) as failure:
        evidence.losses()
    assert model.training
    assert torch.equal(model.items(torch.arange(ITEMS)), before)
    del failure  # which until now kept the frames of the failure alive


def test_no_gradient_and_no_change_is_left_behind():
    model, batches = Dot(make_table()), make_batches()
    before = copy.deepcopy(model.state_dict())
    evidence = AutogradEvidence(model.items, model, data=batches)
    evidence.gradients(torch.arange(ITEMS))
    evidence.losses()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_gradients_are_found_where_they_are_switched_off():
    model = Dot(make_table())
    evidence = AutogradEvidence(model.items, model, data=make_batches())
    expected = evidence.gradients(torch.arange(ITEMS))
    with torch.no_grad():
        assert torch.equal(evidence.gradients(torch.arange(ITEMS)), expected)


def test_partners_are_not_known():
    model = Dot(make_table())
    with pytest.raises(CelrecError, match="choose another split method"):
        AutogradEvidence(model.items, model).partners(torch.arange(2))
