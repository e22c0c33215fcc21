import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Plan, Planted, Split, fit
from celrec.config.offline import OfflineConfig, Schedule, TreeConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.embeddings.tree import TreeEmbedding
from celrec.evaluation.cluster_diagnostics import adjusted_rand_index
from celrec.offline import gradient_descent
from celrec.offline.factorisation_solver import initialise_factors
from celrec.offline.gradient_descent import TreeAdmm
from celrec.offline.row_solvers import admm_rows
from celrec.offline.training import OfflineTraining
from celrec.recommender.model import Model
from tests.data.logs import logs
from tests.offline.test_least_squares import assert_resumes

DIM = 3
PLANTED = Planted(rows=3000, users=40, items=30, dim=3, item_clusters=4, noise=0.2)


@pytest.fixture(autouse=True)
def seeded_rows():
    torch.manual_seed(0)


# Rows.


class Rows:
    """Problems min ½·xᵀ(D + λI)x − (d + λ·anchor)ᵀx over x ≥ 0, one for each row."""

    def __init__(self, seed, count=4, dim=4, examples=6, ridge=0.7):
        rng = np.random.default_rng(seed)
        partners = rng.normal(size=(count, examples, dim))
        targets = rng.normal(1, 2, size=(count, examples))
        self.data = (partners.transpose(0, 2, 1) @ partners).astype(np.float32)
        self.right = np.einsum("ned,ne->nd", partners, targets).astype(np.float32)
        self.anchors = np.abs(rng.normal(size=(count, dim)))
        self.rows = np.abs(rng.normal(size=(count, dim))).astype(np.float32)
        self.duals = rng.normal(size=(count, dim)).astype(np.float32)
        self.ridge = ridge

    def lower(self, iterations, tolerance):
        return admm_rows(
            self.data,
            self.right,
            self.ridge,
            self.anchors,
            iterations,
            tolerance,
            self.rows,
            self.duals,
        )

    def problem(self, row):
        """Matrix and right side, in double precision."""
        matrix = self.data[row].astype(np.float64) + self.ridge * np.eye(len(self.right[row]))
        return matrix, self.right[row] + self.ridge * self.anchors[row]

    def values(self):
        """What is to be lowered, for every row."""
        found = []
        for row, x in enumerate(self.rows.astype(np.float64)):
            matrix, right = self.problem(row)
            found.append(x @ matrix @ x / 2 - right @ x)
        return np.array(found)


def slow_admm(rows, row, iterations, tolerance):
    """As it is documented, with a solve in every iteration."""
    matrix, right = rows.problem(row)
    x, u = rows.rows[row].astype(np.float64), rows.duals[row].astype(np.float64)
    rho = np.trace(rows.data[row].astype(np.float64)) / len(x)
    for _ in range(iterations):
        free = np.linalg.solve(matrix + rho * np.eye(len(x)), right + rho * (x + u))
        new = np.maximum(0, free - u)
        u = u + new - free
        still = np.sum((new - free) ** 2) + np.sum((new - x) ** 2)
        x = new
        if still <= tolerance**2 * np.sum(new**2):
            break
    return x, u


def projected_gradient(matrix, right):
    x, pace = np.zeros(len(right)), 1 / np.linalg.eigvalsh(matrix)[-1]
    for _ in range(20_000):
        x = np.maximum(0, x - pace * (matrix @ x - right))
    return x


@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([0.0, 1e-3, 0.3]))
def test_rows_and_duals_are_those_of_a_slow_admm(seed, iterations, tolerance):
    rows = Rows(seed)
    before, values = rows.rows.copy(), rows.values()
    slow = [slow_admm(rows, row, iterations, tolerance) for row in range(4)]
    left = rows.lower(iterations, tolerance)
    for row, (x, u) in enumerate(slow):
        np.testing.assert_allclose(rows.duals[row], u, rtol=1e-4, atol=1e-4)
        matrix, right = rows.problem(row)
        if x @ matrix @ x / 2 - right @ x > values[row]:  # it would have gone up
            x = before[row].astype(np.float64)
        np.testing.assert_allclose(rows.rows[row], x, rtol=1e-4, atol=1e-4)
    x = rows.rows.astype(np.float64)
    expected = np.einsum("ni,nij,nj->", x, rows.data, x) - 2 * np.sum(rows.right * x)
    assert left == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_many_iterations_come_to_the_best_rows_that_are_not_negative(seed):
    rows = Rows(seed)
    best = [projected_gradient(*rows.problem(row)) for row in range(4)]
    rows.lower(3000, 0.0)
    np.testing.assert_allclose(rows.rows, best, rtol=1e-3, atol=1e-4)
    assert (np.array(best) < 1e-6).any()


def test_a_few_iterations_at_a_time_come_there_too():
    """Duals go on from call to call."""
    rows = Rows(0)
    best = [projected_gradient(*rows.problem(row)) for row in range(4)]
    for _ in range(400):
        rows.lower(5, 1e-6)
    np.testing.assert_allclose(rows.rows, best, rtol=1e-3, atol=1e-3)


@given(
    st.integers(0, 10**6),
    st.integers(1, 8),
    st.integers(0, 5),
    st.sampled_from([1e-3, 0.7, 50.0]),
    st.sampled_from([1e-3, 1.0, 100.0]),
)
def test_no_row_ever_ends_higher_than_it_began(seed, iterations, examples, ridge, wild):
    rows = Rows(seed, examples=examples, ridge=ridge)
    rows.duals *= wild
    for _ in range(3):
        before = rows.values()
        rows.lower(iterations, 1e-3)
        assert (rows.rows >= 0).all()
        assert (rows.values() <= before + 1e-5 * (1 + np.abs(before))).all()


def test_a_row_without_interactions_goes_to_its_anchor():
    rows = Rows(0, examples=0)
    rows.duals[:] = 0
    rows.lower(50, 1e-6)
    np.testing.assert_allclose(rows.rows, rows.anchors, rtol=1e-5)


# Steps.


def make_solver(log, rows=3, root=True, share=True, pull=20.0, seed=0, **how):
    torch.manual_seed(seed)
    items = TreeEmbedding(log.num_items, DIM, rows=rows, root=root, share=share, pull=pull)
    model = Model(FullEmbedding(log.num_users, DIM), items)
    initialise_factors(model, torch.Generator().manual_seed(seed))
    return TreeAdmm(model, log, TreeConfig(**{"warm_up": 2, **how}), seed)


def slow_objective(solver, log):
    """½·Σ (x − a·b)² + λ/2·Σ‖a‖² + μ/2·(Σ ‖b − c‖² + Σ ‖c − r‖²), by loops."""
    users, tree = solver.model.users.weight.detach().double(), solver.tree
    leaves, centres = tree.weight.detach().double(), tree.centre.double()
    total = 0.0
    for user, item, target in zip(log.user, log.item, log.target, strict=True):
        total += (float(target) - float(users[user] @ leaves[item])) ** 2 / 2
    for row in users:
        total += solver.how.l2_users * solver.how.strength / 2 * float(row @ row)
    for item in range(log.num_items):
        apart = leaves[item] - centres[int(tree.assignment[item])]
        total += tree.pull * solver.how.strength / 2 * float(apart @ apart)
    for centre in centres if tree.root else ():
        apart = centre - tree.root_row.double()
        total += tree.pull * solver.how.strength / 2 * float(apart @ apart)
    return total


@given(
    logs(),
    st.booleans(),
    st.integers(1, 8),
    st.sampled_from([0.01, 1.0, 20.0]),
    st.sampled_from([0.05, 1.0, 20.0]),
    st.integers(0, 100),
)
def test_no_step_raises_the_objective_once_there_is_a_tree(log, root, rows, pull, l2, seed):
    rows = min(rows, log.num_items)
    solver = make_solver(log, rows, root, pull=pull, seed=seed, l2_users=l2, warm_up=2)
    for _ in range(3):
        solver.step()
    assert solver.tree.centre.any() or not solver.tree.weight.any()
    before = solver.objective()
    slack = 1e-5 * (1 + float(np.square(log.target).sum()))
    for _ in range(8):
        solver.step()
        assert solver.objective() <= before + slack
        before = solver.objective()


@given(logs(), st.booleans(), st.sampled_from([0.5, 1.0, 3.0]))
@settings(max_examples=30)
def test_the_objective_is_that_of_loops(log, root, strength):
    solver = make_solver(log, min(3, log.num_items), root, pull=2.0, strength=strength)
    for _ in range(4):
        solver.step()
    slack = 1e-5 * (1 + float(np.square(log.target).sum()))
    assert solver.objective() == pytest.approx(slow_objective(solver, log), rel=1e-4, abs=slack)


@pytest.mark.parametrize("root", [True, False])
def test_a_step_lowers_users_then_leaves_then_the_tree(root):
    log = PLANTED.interactions()
    solver = make_solver(log, root=root)
    for _ in range(4):
        solver.step()
    before = solver._statistics.loss_and_slopes()[0]
    values, watched = [], []
    lower, adapt = solver._lower, solver.tree.adapt

    def watch(name, call):
        def run(*given):
            values.append(solver.objective())
            call(*given)
            watched.append(name(given))

        return run

    solver._lower = watch(lambda given: given[0], lower)
    solver.tree.adapt = watch(lambda _: "tree", adapt)
    loss = solver.step()
    values.append(solver.objective())
    assert watched == ["users", "items", "tree"]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]
    assert loss == before


def test_long_training_comes_to_where_no_row_can_be_lowered():
    """At the end, users and leaves are the best that there are, given all else."""
    log = PLANTED.interactions()
    solver = make_solver(log, pull=5.0, l2_users=5.0, iterations=20, tolerance=1e-6)
    for _ in range(300):
        solver.step()
    users, tree = solver.model.users.weight.detach().double().numpy(), solver.tree
    leaves = tree.weight.detach().double().numpy()
    for item in range(0, log.num_items, 7):
        own = users[log.user[log.item == item]]
        matrix = own.T @ own + 5.0 * np.eye(DIM)
        centre = tree.centre[int(tree.assignment[item])].double().numpy()
        right = own.T @ log.target[log.item == item] + 5.0 * centre
        best = projected_gradient(matrix, right)
        np.testing.assert_allclose(leaves[item], best, atol=0.02)
    for user in range(0, log.num_users, 9):
        own = leaves[log.item[log.user == user]]
        matrix = own.T @ own + 5.0 * np.eye(DIM)
        best = projected_gradient(matrix, own.T @ log.target[log.user == user])
        np.testing.assert_allclose(users[user], best, atol=0.02)


@pytest.mark.parametrize("root", [True, False])
def test_the_tree_begins_when_the_warm_up_is_over(root):
    log = PLANTED.interactions()
    solver = make_solver(log, root=root, warm_up=3)
    for _ in range(3):
        solver.step()
        assert not solver.tree.centre.any()
    solver.step()
    assert solver.tree.centre.any()


def test_before_there_is_a_tree_leaves_are_drawn_to_zero():
    log = PLANTED.interactions()
    norms = []
    for l2 in (1.0, 1e5):
        solver = make_solver(log, l2_users=l2, warm_up=3)
        for _ in range(3):
            solver.step()
        norms.append(float(solver.tree.weight.detach()[:-1].norm()))
    assert norms[1] < 0.1 * norms[0]


def test_batches_of_rows_are_the_same_as_all_at_once(monkeypatch):
    log = PLANTED.interactions()
    found = []
    for numbers in (1 << 22, 7 * DIM**2):
        monkeypatch.setattr(gradient_descent, "_BATCH", numbers)
        solver = make_solver(log)
        for _ in range(5):
            solver.step()
        found.append(solver.model.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_unseen_items_have_the_mean_leaf_and_unseen_users_go_to_zero():
    log = PLANTED.interactions()
    solver = make_solver(log)
    for _ in range(30):
        solver.step()
    torch.testing.assert_close(solver.tree.weight[-1], solver.tree.weight[:-1].mean(0))
    assert solver.model.users.weight[-1].norm() < 1e-2 * solver.model.users.weight[0].norm()


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("steps", [(1, 4), (2, 3), (4, 3)])
def test_going_on_from_a_saved_state_is_never_to_have_stopped(root, steps, tmp_path):
    log = PLANTED.interactions()

    def make(seed):
        return make_solver(log, root=root, seed=seed).model

    assert_resumes(
        make, lambda model: TreeAdmm(model, log, TreeConfig(warm_up=2), 0), tmp_path, steps
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_tree(seed):
    log = PLANTED.interactions()
    states = []
    for _ in range(2):
        solver = make_solver(log, seed=seed)
        for _ in range(5):
            solver.step()
        states.append(solver.model.state_dict())
    assert all(torch.equal(states[1][name], value) for name, value in states[0].items())


# What is left.


def trained(root, share, **schedule):
    split = Split.random(PLANTED.interactions())
    solver = make_solver(split.train, 4, root, share)
    schedule = Schedule(**{"steps": 20, "validate_every": 4, "split_every": 0, **schedule})
    how = OfflineConfig(solver=TreeConfig(warm_up=6), schedule=schedule)
    training = OfflineTraining(solver.model, split.train, split.valid, how)
    training.start()
    training.run()
    return split, training


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_what_was_judged_is_what_is_left(root, share):
    split, training = trained(root, share)
    model = training.model
    leaves = copy.deepcopy(model)
    model.items = model.items.settled()
    assert type(model.items) is (ClusteredEmbedding if share else FullEmbedding)
    with training.solver.averaged(), leaves.items.as_served():
        strangers = torch.tensor([-1, 10**6, 0])
        assert torch.equal(leaves.items(strangers), model.items(strangers))
    error = (model.predict(split.valid) - torch.tensor(split.valid.target)).square().mean()
    assert float(error) == pytest.approx(training.best.valid_loss, rel=1e-5)
    plain = (leaves.predict(split.valid) - torch.tensor(split.valid.target)).square().mean()
    assert (float(plain) == pytest.approx(float(error), rel=1e-5)) != share


def test_before_there_is_a_tree_shared_rows_are_judged_as_the_nothing_they_are():
    split, training = trained(root=True, share=True)
    nothing = float(np.square(split.valid.target, dtype=np.float64).mean())
    assert training.validation_records[0].valid_loss == pytest.approx(nothing, rel=1e-5)
    assert training.best.step > 6
    assert training.best.valid_loss < 0.2 * nothing


@pytest.mark.parametrize(
    ("embedding", "kind"),
    [
        ("etree", ClusteredEmbedding),
        ("jnkm", ClusteredEmbedding),
        ("etree-leaves", FullEmbedding),
        ("jnkm-leaves", FullEmbedding),
    ],
)
def test_fit_leaves_the_rows_that_serve_and_tells_what_training_held(embedding, kind):
    split = Split.random(PLANTED.interactions())
    fitted = fit(split, Plan(embedding, "4", rank=DIM))
    items = fitted.model.items
    assert type(items) is kind
    if kind is ClusteredEmbedding:
        assert items.memory().table <= 4 * DIM * 4
    leaves, tree = 30 + 1, 4 + 1
    assert fitted.training_bytes["items"] == (leaves + tree) * DIM * 4 + 30
    error = fitted.model.predict(split.test) - torch.tensor(split.test.target)
    assert float(error.square().mean()) < 0.5 * float(np.var(split.test.target))


@pytest.mark.parametrize("embedding", ["jnkm", "etree"])
def test_planted_clusters_are_found_much_better_than_by_chance(embedding):
    planted = Planted(
        rows=8000, users=60, items=40, dim=3, item_clusters=4, noise=0.1, item_skew=0.3
    )
    split = Split.random(planted.interactions())
    fitted = fit(split, Plan(embedding, "4", rank=DIM))
    found = fitted.model.items.assignment[:-1].tolist()
    ids = split.train.item_ids.ids.to_numpy()
    assert adjusted_rand_index(found, planted.item_cluster[ids].tolist()) > 0.5


# Mistakes.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"l2_users": 0.0}, "l2_users must be positive, not 0.0"),
        ({"iterations": 0}, "iterations must be positive, not 0"),
        ({"tolerance": float("nan")}, "tolerance must be positive, not nan"),
        ({"strength": -1.0}, "strength must be positive, not -1.0"),
    ],
)
def test_wrong_settings_are_told(wrong, message):
    with pytest.raises(CelrecError, match=message):
        TreeConfig(**wrong)


def test_tables_that_are_no_trees_and_biases_are_told():
    log = PLANTED.interactions()
    users, full = FullEmbedding(40, DIM), FullEmbedding(30, DIM)
    tree = TreeEmbedding(30, DIM, rows=3)
    for tables in ((users, full), (BiasedEmbedding(users), BiasedEmbedding(tree))):
        with pytest.raises(CelrecError, match="is for a TreeEmbedding of items without biases"):
            TreeAdmm(Model(*tables), log, TreeConfig(), 0)
