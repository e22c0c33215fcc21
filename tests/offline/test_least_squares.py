import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, read
from celrec.config.offline import LeastSquaresConfig, OfflineConfig, Schedule
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.id_rows import copy_row_state
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.offline import least_squares
from celrec.offline.factorisation_solver import initialise_factors
from celrec.offline.least_squares import AlternatingLeastSquares
from celrec.offline.row_solvers import solve_rows
from celrec.offline.training import OfflineTraining
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.runtime.state_file import load_state, save_state
from tests.data.logs import logs
from tests.offline.test_collapse import FORMS, rows_and_targets, tables
from tests.offline.test_residuals import SlowBiases

PLAIN = LeastSquaresConfig(uncertainty=False)
SIDES = ("users", "items")


@pytest.fixture(autouse=True)
def seeded_rows():
    torch.manual_seed(0)


class SlowLeastSquares:
    """The sweep as it is documented: loops over interactions in double precision."""

    def __init__(self, model, log, how):
        self.tables = {"users": model.user_rows, "items": model.item_rows}
        self.log, self.how = log, how
        self.biases = SlowBiases(model, log, how.l2_biases) if model.biases else None
        self.variance = float(np.var(log.target.astype(np.float64))) or 1.0
        self.noise = self.variance
        self.rows, self.covariances, self.anchors, self.precisions = {}, {}, {}, {}
        for side, table in self.tables.items():
            rows = table.weight.detach()[: table.num_rows].double().numpy().copy()
            dim = rows.shape[1]
            self.rows[side], self.covariances[side] = rows, np.zeros((len(rows), dim, dim))
            self.anchors[side] = rows if isinstance(table, MixedEmbedding) else 0 * rows
            strength = how.l2_users / self.variance if side == "users" else how.l2_items
            self.precisions[side] = strength * np.eye(dim)

    def sweep(self):
        """One sweep from the rows that the tables had when they were last looked at."""
        self.interactions = rows_and_targets(self.log, self.tables["users"], self.tables["items"])
        if self.biases:
            a, b = self.rows["users"], self.rows["items"]
            self.biases.fit(np.array([a[r] @ b[k] for r, k, _ in self.interactions]))
            left = self.biases.targets()
            self.interactions = [
                (r, k, x) for (r, k, _), x in zip(self.interactions, left, strict=True)
            ]
        for side in SIDES:
            self.solve(side)
        for side in SIDES:
            self.learn_prior(side)
        if self.how.uncertainty:
            self.noise = max(self.expected_error() / len(self.log), 1e-6 * self.variance)

    def look(self):
        """Take up the rows as they are, lest rounding add up, and new clusters as their parents."""
        for side, table in self.tables.items():
            for new in range(len(self.rows[side]), table.num_rows):
                parent = int(table.parent[new])
                for known in (self.covariances, self.anchors):
                    known[side] = np.concatenate([known[side], known[side][[parent]]])
            self.rows[side] = table.weight.detach()[: table.num_rows].double().numpy().copy()

    def solve(self, side):
        other = "items" if side == "users" else "users"
        ridge = self.noise * self.precisions[side]
        new, covariances = [], []
        for own in range(len(self.rows[side])):
            data, right = 0 * ridge, 0 * ridge[0]
            for r, k, x in self.interactions:
                mine, partner = (r, k) if side == "users" else (k, r)
                if mine == own:
                    row = self.rows[other][partner]
                    data += np.outer(row, row) + self.covariances[other][partner]
                    right += x * row
            stiffness = with_rounding(data, ridge)
            matrix, right = data + stiffness, right + stiffness @ self.anchors[side][own]
            solve = best_non_negative if self.how.non_negative else np.linalg.solve
            new.append(solve(matrix, right))
            covariances.append(self.noise * np.linalg.inv(matrix))
        self.rows[side] = np.array(new)
        if self.how.uncertainty:
            self.covariances[side] = np.array(covariances)

    def learn_prior(self, side):
        if isinstance(self.tables[side], ClusteredEmbedding):
            return
        rows = self.rows[side]
        if not isinstance(self.tables[side], MixedEmbedding):
            self.anchors[side] = np.tile(rows.mean(0), (len(rows), 1))
        if self.how.uncertainty:
            apart = rows - self.anchors[side]
            spreads = [
                np.outer(gap, gap) + covariance
                for gap, covariance in zip(apart, self.covariances[side], strict=True)
            ]
            self.precisions[side] = np.linalg.inv(sum(spreads) / len(rows))

    def expected_error(self):
        """Σ E[(x − a·b)²], a and b being independent."""
        total = 0.0
        for r, k, x in self.interactions:
            a, b = self.rows["users"][r], self.rows["items"][k]
            cov_a, cov_b = self.covariances["users"][r], self.covariances["items"][k]
            total += (x - a @ b) ** 2 + a @ cov_b @ a + b @ cov_a @ b + np.trace(cov_a @ cov_b)
        return total

    def predict(self):
        dots = [self.rows["users"][r] @ self.rows["items"][k] for r, k, _ in self.interactions]
        left = np.array([x for *_, x in self.interactions])
        return self.log.target - left + np.array(dots)


def with_rounding(data, ridge):
    """Λ with the little more that makes up for sums in single precision."""
    return ridge + 1e-5 * np.trace(data + ridge) / len(ridge) * np.eye(len(ridge))


def best_non_negative(matrix, right):
    """The x ≥ 0 with the least ½·xᵀMx − rᵀx: every set of values that may be above 0 is tried."""
    best, least = np.zeros(len(right)), 0.0
    for size in range(1, len(right) + 1):
        for free in itertools.combinations(range(len(right)), size):
            x = np.zeros(len(right))
            x[list(free)] = np.linalg.solve(matrix[np.ix_(free, free)], right[list(free)])
            value = x @ matrix @ x / 2 - right @ x
            if (x >= 0).all() and value < least:
                best, least = x, value
    return best


def make_solver(form, model, log, how):
    solver = AlternatingLeastSquares(model, log, how)
    solver._statistics = form(log, model.user_rows, model.item_rows)
    return solver


def assert_alike(model, slow, tolerance=1e-3):
    for side, table in slow.tables.items():
        found, wanted = table.weight.detach()[: table.num_rows].double().numpy(), slow.rows[side]
        scale = np.abs(wanted).max() + 1e-2
        assert np.abs(found - wanted).max() < tolerance * scale, side
    predicted = slow.predict()
    assert np.allclose(
        model.predict(slow.log), predicted, atol=tolerance * (1 + np.abs(predicted).max())
    )


@st.composite
def models(draw, log, biased=False):
    spare = 0 if biased else 2
    sides = [draw(tables(size, spare=spare)) for size in (log.num_users, log.num_items)]
    return Model(*map(BiasedEmbedding, sides)) if biased else Model(*sides)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40)
@given(logs(), st.floats(0.3, 20), st.floats(0.3, 20), st.data())
def test_plain_sweeps_are_ridge_solutions_from_a_loop_over_interactions(
    form, log, l2_users, l2_items, data
):
    model = data.draw(models(log))
    how = LeastSquaresConfig(l2_users=l2_users, l2_items=l2_items, uncertainty=False)
    fast, slow = make_solver(form, model, log, how), SlowLeastSquares(model, log, how)
    for _ in range(3):
        slow.look()
        fast.step()
        slow.sweep()
        assert_alike(model, slow)


def split_if_possible(model, draw):
    for table in (model.user_rows, model.item_rows):
        if isinstance(table, ClusteredEmbedding) and table.num_clusters < table.max_clusters:
            large = torch.nonzero(table.sizes() > 1).squeeze(1).tolist()
            if large:
                members = table.members(draw(st.sampled_from(large)))
                table.split(int(table.assignment[members[0]]), members[: len(members) // 2])


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40)
@given(logs(), st.floats(0.3, 20), st.floats(0.3, 20), st.booleans(), st.data())
def test_sweeps_with_uncertainty_are_those_of_a_loop_over_interactions_through_splits(
    form, log, l2_users, l2_items, biased, data
):
    model = data.draw(models(log, biased))
    how = LeastSquaresConfig(l2_users=l2_users, l2_items=l2_items, l2_biases=2.0)
    fast, slow = make_solver(form, model, log, how), SlowLeastSquares(model, log, how)
    if biased:
        fast.residuals.start()
        slow.biases.start()
    for _ in range(4):
        slow.look()
        fast.step()
        slow.sweep()
        assert_alike(model, slow)
        assert fast.state_dict()["noise"] == pytest.approx(slow.noise, rel=1e-3)
        split_if_possible(model, data.draw)


@settings(max_examples=30)
@given(logs(), st.booleans(), st.data())
def test_sweeps_without_negative_values_are_those_of_a_loop_if_there_are_passes_enough(
    log, uncertainty, data
):
    model = data.draw(models(log))
    how = LeastSquaresConfig(uncertainty=uncertainty, non_negative=True)
    fast, slow = AlternatingLeastSquares(model, log, how), SlowLeastSquares(model, log, how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(least_squares, "PASSES", 1000)
        for _ in range(3):
            slow.look()
            fast.step()
            slow.sweep()
            assert_alike(model, slow)


PLANTED = Planted(rows=600, users=30, items=25, dim=2, item_clusters=5, noise=0.3)


def clustered(ids, dim, clusters, spare=0):
    table = ClusteredEmbedding(ids, dim, max_clusters=clusters + spare)
    table.start_from(torch.arange(ids) % clusters)
    return table


def mixed(ids, dim, clusters):
    return MixedEmbedding.personalise(clustered(ids, dim, clusters), torch.arange(ids) % 3 == 0)


def make_model(log, users, items, biased=False, seed=0):
    """Tables by their kinds, with first rows."""
    kinds = {
        "full": lambda ids: FullEmbedding(ids, 3),
        "modulo": lambda ids: ModuloEmbedding(ids, 3, rows=7),
        "clustered": lambda ids: clustered(ids, 3, 4, spare=3),
        "mixed": lambda ids: mixed(ids, 3, 4),
    }
    sides = [kinds[users](log.num_users), kinds[items](log.num_items)]
    model = Model(*map(BiasedEmbedding, sides)) if biased else Model(*sides)
    initialise_factors(model, torch.Generator().manual_seed(seed))
    return model


def error(model, log):
    return float(np.mean((model.predict(log).numpy() - log.target) ** 2))


def sweep(model, log, how, sweeps):
    solver = AlternatingLeastSquares(model, log, how)
    solver.residuals.start()
    losses = [solver.step() for _ in range(sweeps)]
    assert all(np.isfinite(losses))
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    return losses


@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize("users", ["clustered", "full"])
def test_the_penalised_error_never_rises(users, non_negative):
    log = PLANTED.interactions()
    model = make_model(log, users, "clustered")
    how = LeastSquaresConfig(3.0, 2.0, uncertainty=False, non_negative=non_negative)
    solver = AlternatingLeastSquares(model, log, how)

    def penalised():
        a, b = (t.weight.detach()[: t.num_rows].double() for t in (model.users, model.items))
        if users == "full":
            a = a - a.mean(0)  # the mean row is the best one to be drawn to
        penalties = 3.0 * a.square().sum() + 2.0 * log.target.var() * b.square().sum()
        return error(model, log) * len(log) + float(penalties)

    found = []
    for _ in range(25):
        solver.step()
        found.append(penalised())
    assert all(after < before * (1 + 1e-5) for before, after in itertools.pairwise(found))
    assert found[-1] < 0.97 * found[0]


def evidence_bound(model, log, solver):
    """E[log p(x, rows)] − E[log q(rows)], but for what does not change."""
    state = solver.state_dict()
    expected, bound = 0.0, -len(log) / 2 * np.log(state["noise"])
    rows = np.array(rows_and_targets(log, model.user_rows, model.item_rows))
    moments, means = {}, {}
    for side, table in (("users", model.user_rows), ("items", model.item_rows)):
        means[side] = table.weight.detach()[: table.num_rows].double().numpy()
        moments[side] = solver._moments[side].double().numpy()
        precision = state["precisions"][side].numpy()
        anchors = state["anchors"].get(side, state["means"][side]).numpy()
        covariances = moments[side] - means[side][:, :, None] * means[side][:, None, :]
        apart = means[side] - anchors
        bound -= np.einsum("rij,ij->", covariances, precision) / 2
        bound -= np.einsum("ri,ij,rj->", apart, precision, apart) / 2
        bound += np.linalg.slogdet(covariances)[1].sum() / 2
        bound += np.linalg.slogdet(precision)[1] * len(apart) / 2
    r, k, x = rows[:, 0].astype(int), rows[:, 1].astype(int), rows[:, 2]
    expected = np.square(x).sum() - 2 * x @ (means["users"][r] * means["items"][k]).sum(1)
    expected += (moments["users"][r] * moments["items"][k]).sum()
    return bound - expected / (2 * state["noise"])


@pytest.mark.parametrize(
    ("users", "items"),
    [("full", "clustered"), ("clustered", "clustered"), ("full", "full"), ("full", "mixed")],
)
def test_with_uncertainty_the_bound_of_the_evidence_never_falls(users, items):
    log = PLANTED.interactions()
    model = make_model(log, users, items)
    solver = AlternatingLeastSquares(model, log, LeastSquaresConfig())
    bounds = []
    for _ in range(30):
        solver.step()
        bounds.append(evidence_bound(model, log, solver))
    assert all(after > before - 0.01 for before, after in itertools.pairwise(bounds))
    assert bounds[-1] > bounds[0] + 10


def test_a_step_tells_the_squared_error_before_it():
    log = PLANTED.interactions()
    model = make_model(log, "full", "clustered")
    solver = AlternatingLeastSquares(model, log, LeastSquaresConfig())
    for _ in range(3):
        before = error(model, log) * len(log)
        assert solver.step() == pytest.approx(before, rel=1e-4)


@pytest.mark.parametrize(
    "how", [PLAIN, LeastSquaresConfig(), LeastSquaresConfig(non_negative=True)]
)
@pytest.mark.parametrize("kind", ["full", "clustered", "modulo", "mixed"])
def test_rows_are_solved_for_in_batches_as_all_at_once(how, kind, monkeypatch):
    log = PLANTED.interactions()
    models = [make_model(log, kind, kind) for _ in range(2)]
    for model, batch in zip(models, (1 << 22, 2 * 3**2), strict=True):
        monkeypatch.setattr(least_squares, "_BATCH", batch)
        sweep(model, log, how, 3)
    for one, other in zip(*(model.state_dict().values() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@st.composite
def equations(draw):
    """Matrices of data, right sides, a stiffness, anchors and rows to begin with."""
    count, dim = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    roots = rng.normal(size=(count, dim, draw(st.integers(1, 5))))
    root = rng.normal(size=(dim, dim))
    return (
        (roots @ roots.transpose(0, 2, 1)).astype(np.float32),
        rng.normal(size=(count, dim)).astype(np.float32),
        root @ root.T + 0.3 * np.eye(dim),
        rng.normal(size=(count, dim)),
        rng.normal(size=(count, dim)).astype(np.float32),
    )


@given(equations(), st.sampled_from([0.0, 0.7]), st.sampled_from([0, 1, 3, 2000]))
def test_solutions_moments_and_what_is_left_are_those_of_dense_algebra(system, noise, passes):
    data, right, ridge, anchors, rows = system
    found, moments = rows.copy(), np.full_like(data, np.nan)
    left = solve_rows(data, right, ridge, anchors, noise, passes, found, moments)
    expected = 0.0
    for r in range(len(rows)):
        stiffness = with_rounding(data[r], ridge)
        matrix, vector = data[r] + stiffness, right[r] + stiffness @ anchors[r]
        if passes == 0:
            x = np.linalg.solve(matrix, vector)
        elif passes == 2000:
            x = best_non_negative(matrix, vector)
        else:
            x = rows[r].astype(np.float64)
            for _, i in itertools.product(range(passes), range(len(x))):
                x[i] = max(0, x[i] - (matrix[i] @ x - vector[i]) / matrix[i, i])
        assert np.allclose(found[r], x, atol=3e-4)
        moment = np.outer(found[r], found[r]) + noise * np.linalg.inv(matrix)
        assert np.allclose(moments[r], moment, atol=3e-4)
        expected += (data[r] * moment).sum() - 2 * right[r] @ found[r]
    assert left == pytest.approx(expected, rel=1e-3, abs=1e-2)
    if passes:
        assert (found >= 0).all()


@given(equations(), st.sampled_from([0, 2000]))
def test_a_row_without_data_is_its_anchor_however_stiff_some_directions_are(system, passes):
    data, right, ridge, anchors, rows = system
    stiff = ridge + 1e9 * np.outer(ridge[0], ridge[0])
    anchors = np.abs(anchors)
    for some in (ridge, stiff) if passes == 0 else (ridge,):
        found = rows.copy()
        solve_rows(0 * data, 0 * right, some, anchors, 0.0, passes, found, np.empty_like(data))
        assert np.allclose(found, anchors, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("uncertainty", [False, True])
@pytest.mark.parametrize("users", ["full", "clustered"])
def test_no_value_is_negative_if_that_is_asked_for(users, uncertainty):
    log = PLANTED.interactions()
    model = make_model(log, users, "clustered")
    with torch.no_grad():
        model.users.weight.normal_()
        model.items.weight.normal_()
    solver = AlternatingLeastSquares(
        model, log, LeastSquaresConfig(uncertainty=uncertainty, non_negative=True)
    )
    for _ in range(5):
        solver.step()
        for table in (model.users, model.items):
            assert (table.weight[: table.num_rows] >= 0).all()
    assert error(model, log) < 0.9 * float(log.target.var())


HOWS = {
    "plain": LeastSquaresConfig(1e-3, 1e-4, 1e-3, uncertainty=False),
    "uncertain": LeastSquaresConfig(),
    "non-negative": LeastSquaresConfig(non_negative=True),
}


@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS.keys())
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("clusters", [False, True])
def test_planted_data_without_noise_are_fitted(how, biased, clusters):
    planted = replace(PLANTED, rows=2000, noise=0.0)
    log = planted.interactions()
    cluster = torch.tensor(planted.item_cluster[log.item_ids.ids.to_numpy()]).long()
    items = ClusteredEmbedding(log.num_items, 4, max_clusters=5)
    items.start_from(cluster)
    sides = [FullEmbedding(log.num_users, 4), items if clusters else FullEmbedding(25, 4)]
    model = Model(*map(BiasedEmbedding, sides)) if biased else Model(*sides)
    initialise_factors(model, torch.Generator().manual_seed(0))
    losses = sweep(model, log, how, 60)
    assert losses[-1] < losses[0]
    # Biases take away what factors without negative values would need.
    limit = 0.2 if biased and how.non_negative else 3e-3
    assert error(model, log) < limit * float(log.target.var())


@pytest.mark.parametrize(
    "how", [PLAIN, LeastSquaresConfig(), LeastSquaresConfig(non_negative=True)]
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_ratings_on_another_scale_are_predicted_alike(how, biased, factor):
    log = PLANTED.interactions()
    scaled = replace(log, target=log.target * factor)
    models = [make_model(log, "full", "clustered", biased) for _ in range(2)]
    sweep(models[0], log, how, 15)
    sweep(models[1], scaled, how, 15)
    predicted, other = models[0].predict(log), models[1].predict(scaled) / factor
    spread = float(log.target.std())
    # Biases begin beside rows that have no unit yet, and values that are kept from being
    # negative begin with them, so that the ways differ a little.
    limit = 0.02 if biased or how.non_negative else 1e-4
    assert float((predicted - other).square().mean().sqrt()) < limit * spread


ODD = {
    "all ratings are equal": {"user": [1, 1, 2, 3], "item": [1, 2, 2, 1], "rating": [4.0] * 4},
    "all ratings are 0": {"user": [1, 1, 2, 3], "item": [1, 2, 2, 1], "rating": [0.0] * 4},
    "one user": {"user": [1] * 5, "item": [1, 2, 3, 4, 4], "rating": [1.0, 2.0, 3.0, 4.0, 5.0]},
    "one item": {"user": [1, 2, 3, 4, 4], "item": [1] * 5, "rating": [1.0, 2.0, 3.0, 4.0, 5.0]},
    "one interaction": {"user": [1], "item": [1], "rating": [3.0]},
    "one pair": {"user": [1] * 3, "item": [1] * 3, "rating": [1.0, 2.0, 3.0]},
    "far from 0": {"user": [1, 1, 2, 2], "item": [1, 2, 1, 2], "rating": [1e3, 999, 998, 1e3]},
}


@pytest.mark.parametrize(
    "how", [PLAIN, LeastSquaresConfig(), LeastSquaresConfig(non_negative=True)]
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("odd", ODD)
def test_odd_logs_are_fitted_sensibly(odd, how, biased):
    log = read(ODD[odd])
    sides = FullEmbedding(log.num_users, 3), ClusteredEmbedding(log.num_items, 3, max_clusters=1)
    model = Model(*map(BiasedEmbedding, sides)) if biased else Model(*sides)
    initialise_factors(model, torch.Generator().manual_seed(0))
    sweep(model, log, how, 30)
    users, items = np.divmod(np.arange(log.num_users * (log.num_items + 1)), log.num_items + 1)
    predicted = model(Batch.pairs(torch.tensor(users), torch.tensor(items - 1))).detach()
    low, high = float(log.target.min()), float(log.target.max())
    if how is PLAIN or odd == "one interaction":  # shrunk, or not to be told from noise
        low = min(low, 0)
    margin = 0.5 * (high - low) + 0.01 * high + 1e-3
    assert low - margin <= float(predicted.min()) <= float(predicted.max()) <= high + margin


def test_ratings_with_little_spread_about_a_large_mean_give_finite_rows():
    log = PLANTED.interactions()
    log = replace(log, target=log.target + 1000)
    model = Model(FullEmbedding(log.num_users, 8), FullEmbedding(log.num_items, 8))
    initialise_factors(model, torch.Generator().manual_seed(0))
    sweep(model, log, LeastSquaresConfig(), 60)
    assert error(model, log) < float(log.target.var())


@pytest.mark.parametrize("how", [PLAIN, LeastSquaresConfig()])
@pytest.mark.parametrize("biased", [False, True])
def test_an_empty_log_leaves_finite_rows(how, biased):
    log = PLANTED.interactions()[:0]
    sweep(make_model(log, "full", "clustered", biased), log, how, 3)


@pytest.mark.parametrize("how", [PLAIN, LeastSquaresConfig()])
def test_interactions_with_unseen_ids_do_not_count(how):
    known = PLANTED.interactions()
    rows = known.to_frame()
    strangers = rows.with_columns(user=rows["user"] + 1000, target=rows["target"] + 50)
    more = read({c: [*rows[c], *strangers[c]] for c in ("user", "item", "target")}, like=known)
    assert (more.user < 0).sum() == len(known)
    settings_ = OfflineConfig(how, Schedule(steps=6, split_every=2, validate_every=3))
    found = []
    for log in (known, more):
        model = make_model(known, "full", "clustered")
        training = OfflineTraining(model, log, known[:0], settings_)
        training.start()
        training.run()
        found.append(model.predict(known))
    assert torch.equal(*found)


@pytest.mark.parametrize("how", [PLAIN, LeastSquaresConfig()])
@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("items", ["full", "clustered"])
def test_a_row_without_interactions_is_the_mean_row_as_it_was(how, noise, items):
    log = replace(PLANTED, rows=2000, noise=noise).interactions()
    log = log[(log.user != 3) & (log.item != 4)]  # these have none, as unseen ones
    model = Model(
        FullEmbedding(log.num_users, 6),
        FullEmbedding(25, 6) if items == "full" else clustered(25, 6, 10),
    )
    initialise_factors(model, torch.Generator().manual_seed(0))
    solver = AlternatingLeastSquares(model, log, how)
    for _ in range(40):
        means = [table.weight.detach().mean(0) for table in (model.users, model.items)]
        solver.step()
    for id_, table, mean in zip((3, 4), (model.users, model.items), means, strict=True):
        if isinstance(table, FullEmbedding):
            torch.testing.assert_close(table.weight.detach()[id_], mean, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(table.weight.detach()[-1], mean, rtol=1e-3, atol=1e-5)
            assert mean.norm() > 0.1


@pytest.mark.parametrize("how", [PLAIN, LeastSquaresConfig()])
def test_a_shared_row_without_interactions_stays_at_its_anchor(how):
    log = PLANTED.interactions()
    log = log[log.item % 3 == 0]  # those that have rows of their own
    model = make_model(log, "full", "mixed")
    before = model.items.weight.detach().clone()
    sweep(model, log, how, 10)
    shared = model.items.shared_rows
    torch.testing.assert_close(
        model.items.weight.detach()[:shared], before[:shared], rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(model.items.weight[shared:], before[shared:], atol=1e-2)


def test_rows_of_a_mixed_table_are_drawn_to_where_they_were():
    log = PLANTED.interactions()
    apart = []
    for strength in (1e-3, 1.0, 1e6):
        model = make_model(log, "mixed", "mixed")
        before = [table.weight.detach().clone() for table in (model.users, model.items)]
        sweep(model, log, LeastSquaresConfig(strength, strength, uncertainty=False), 5)
        after = [table.weight.detach() for table in (model.users, model.items)]
        apart.append(max(float((b - a).norm()) for a, b in zip(before, after, strict=True)))
    assert apart[0] > 2 * apart[1] > 1000 * apart[2]
    assert apart[2] < 1e-2


def split_one(model, optimizer=None):
    """Split the largest cluster of items, if there are clusters."""
    table = model.item_rows
    if isinstance(table, ClusteredEmbedding):
        cluster = int(table.sizes().argmax())
        new = table.split(cluster, table.members(cluster)[::2])
        if optimizer is not None:
            copy_row_state(optimizer, table.weight, cluster, new)


def assert_resumes(make, solver_of, folder, steps=(3, 2)):
    """A solver that is saved and loaded goes on as one that never stopped, bit for bit."""
    one, two = make(seed=0), make(seed=1)
    solver = solver_of(one)
    solver.residuals.start()
    for _ in range(steps[0]):
        solver.step()
    split_one(one, solver.optimizer)
    save_state(folder / "state", {"model": one.state_dict(), "solver": solver.state_dict()})
    state = load_state(folder / "state")
    two.load_state_dict(state["model"])
    other = solver_of(two)
    other.load_state_dict(state["solver"])
    losses = []
    for model, each in ((one, solver), (two, other)):
        losses.append([])
        for _ in range(steps[1]):
            losses[-1].append(each.step())
            split_one(model, each.optimizer)
    assert losses[0] == losses[1]
    for name, value in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], value), name


@pytest.mark.parametrize(
    "how", [PLAIN, LeastSquaresConfig(), LeastSquaresConfig(non_negative=True)]
)
@pytest.mark.parametrize("items", ["clustered", "full", "mixed"])
@pytest.mark.parametrize("biased", [False, True])
def test_going_on_from_a_saved_state_is_never_to_have_stopped(how, items, biased, tmp_path):
    log = PLANTED.interactions()

    def make(seed):
        return make_model(log, "full", items, biased, seed)

    assert_resumes(make, lambda model: AlternatingLeastSquares(model, log, how), tmp_path)


def test_the_state_that_was_given_is_not_changed_by_further_steps():
    log = PLANTED.interactions()
    solver = AlternatingLeastSquares(
        make_model(log, "full", "clustered"), log, LeastSquaresConfig()
    )
    solver.step()
    state = solver.state_dict()
    before = copy.deepcopy(state)
    solver.step()
    for name in ("means", "precisions", "moments"):
        for side, value in before[name].items():
            assert torch.equal(state[name][side], value), name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"l2_users": 0.0}, "l2_users must be positive, not 0.0"),
        ({"l2_items": -1.0}, "l2_items must be positive, not -1.0"),
        ({"l2_items": float("nan")}, "l2_items must be positive, not nan"),
        ({"l2_biases": -0.5}, "l2_biases must not be negative, not -0.5"),
        ({"l2_biases": float("nan")}, "l2_biases must not be negative, not nan"),
    ],
)
def test_wrong_settings_are_told(wrong, message):
    with pytest.raises(CelrecError, match=message):
        LeastSquaresConfig(**wrong)


@pytest.mark.parametrize("non_negative", [False, True])
def test_deviations_are_roots_of_the_covariances_after_a_sweep(non_negative):
    log = Planted(rows=300, users=12, items=9, dim=2, item_clusters=3).interactions()
    items = ClusteredEmbedding(log.num_items, 3, max_clusters=3)
    items.start_from(torch.arange(log.num_items) % 3)
    model = Model(FullEmbedding(log.num_users, 3), items)
    how = LeastSquaresConfig(non_negative=non_negative)
    solver = AlternatingLeastSquares(model, log, how)
    solver.start(0)
    for _ in range(60):  # to a fixed point, where another sweep would find the same covariances
        solver.step()
    expected = {}
    for side, table in model.tables.items():
        rows = table.weight.detach()[: table.num_rows]
        expected[side] = solver._moments[side] - rows[:, :, None] * rows[:, None, :]
    found = solver.deviations()
    for side in SIDES:
        covariances = found[side] @ found[side].mT
        scale = float(expected[side].abs().max())
        torch.testing.assert_close(covariances, expected[side], rtol=0.02, atol=0.01 * scale)
    solver.load_state_dict(copy.deepcopy(solver.state_dict()))
    again = solver.deviations()
    for side in SIDES:
        assert torch.equal(again[side], found[side])


def test_deviations_are_told_after_clusters_were_merged_too():
    log = Planted(rows=300, users=12, items=9, dim=2, item_clusters=3).interactions()
    items = ClusteredEmbedding(log.num_items, 3, max_clusters=3)
    items.start_from(torch.arange(log.num_items) % 3)
    model = Model(FullEmbedding(log.num_users, 3), items)
    solver = AlternatingLeastSquares(model, log, LeastSquaresConfig())
    solver.start(0)
    solver.step()
    items.merge(0, 2)
    found = solver.deviations()
    assert found["items"].shape == (2, 3, 3)
    assert all(bool(value.isfinite().all()) for value in found.values())
