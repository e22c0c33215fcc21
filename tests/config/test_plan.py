from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, read
from celrec.config.plan import LEAST_GAIN, Plan
from celrec.config.presets import PRESETS

OF_NMF = "preset must be one of default, least-squares, descent, paper, released, online"
OF_MF = "preset must be one of default, least-squares, descent, online"

# The number of rows.


@pytest.mark.parametrize(
    ("compression", "ids", "rows"),
    [
        ("1%", 3706, 37),
        ("0.5%", 3706, 19),
        (" 0.5 % ", 3706, 19),
        ("40", 3706, 40),
        (" 40 ", 3706, 40),
        ("100%", 7, 7),
        ("1%", 5, 1),
        ("0%", 5, 1),
        ("0", 5, 1),
        ("99", 7, 7),
        ("300%", 7, 7),
        ("auto", 300, 150),
        ("auto", 7, 3),
        ("auto", 1, 1),
    ],
)
def test_rows_are_a_share_of_the_ids_or_a_number(compression, ids, rows):
    assert Plan(compression=compression).rows(ids) == rows


@given(st.floats(0, 1000), st.integers(1, 10**7))
def test_a_share_gives_the_nearest_number_of_rows_that_there_can_be(share, ids):
    rows = Plan(compression=f"{share}%").rows(ids)
    assert 1 <= rows <= ids
    wanted = share * ids / 100
    if 1 <= wanted <= ids:
        assert abs(rows - wanted) <= 0.5 + 1e-9 * wanted
    else:
        assert rows == (1 if wanted < 1 else ids)


@given(st.integers(0, 10**9), st.integers(1, 10**7))
def test_a_number_is_taken_as_it_is_where_there_are_so_many_ids(number, ids):
    assert Plan(compression=str(number)).rows(ids) == min(max(number, 1), ids)


# Wrong values.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(
            ({"compression": text}, "compression must be a share such as '1%', a number of rows")
            for text in ("small", "", "%", "nan%", "inf%", "-inf%", "nan", "inf", "1.5", "1%%")
        ),
        *(
            ({"compression": text}, "compression must not be negative")
            for text in ("-3", "-1%", "-0.001%")
        ),
        ({"embedding": "magic"}, "embedding must be one of cel, "),
        ({"embedding": ""}, "embedding must be one of cel, "),
        ({"side": "left"}, "side must be one of items, users, both"),
        ({"side": ""}, "side must be one of items, users, both"),
        (
            {"model": "magic"},
            "model must be one of nmf, mf, deepfm, dien, din, mmoe, neumf, widedeep",
        ),
        ({"model": ""}, "model must be one of nmf, mf"),
        ({"preset": "best"}, OF_NMF),
        ({"preset": ""}, OF_NMF),
        ({"model": "mf", "preset": "paper"}, OF_MF),
        ({"rank": 0}, "rank must be positive"),
        ({"rank": -8}, "rank must be positive"),
        ({"seed": -1}, "seed must lie in 0"),
        ({"seed": 2**63}, "seed must lie in 0"),
        *(
            ({"personalise": text}, "personalise must be none, all or a number of interactions")
            for text in ("", "some", "-1", "2.5", "nan", "inf", "20%")
        ),
    ],
)
def test_a_wrong_value_is_told_in_one_line_with_its_name_and_what_it_may_be(wrong, message):
    with pytest.raises(CelrecError, match=message) as told:
        Plan(**wrong)
    line = str(told.value)
    assert "\n" not in line
    *_, (name, value) = wrong.items()
    assert line.startswith(name)
    assert f"not {value!r}" in line


@pytest.mark.parametrize("embedding", ["modulo", "full"])
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"start": "random:3"}, "start is for embedding 'cel', not"),
        ({"frozen": True}, "frozen is for embedding 'cel', not"),
        ({"personalise": "all"}, "personalise is for embedding 'cel', not"),
        ({"compression": "auto"}, "compression 'auto' needs embedding 'cel', not"),
    ],
)
def test_what_needs_clusters_is_told_where_there_are_none(embedding, more, told):
    with pytest.raises(CelrecError, match=f"{told} '{embedding}'"):
        Plan(embedding, **more)


def test_clusters_cannot_be_kept_and_chosen():
    with pytest.raises(CelrecError, match="'auto' chooses other clusters, frozen keeps them"):
        Plan(compression="auto", frozen=True, start="random:5")


@given(st.sampled_from(["compression", "personalise"]), st.text(max_size=8))
def test_any_text_is_understood_or_told(name, text):
    try:
        plan = Plan(**{name: text})
    except CelrecError as error:
        told = str(error)
    else:
        assert 1 <= plan.rows(100) <= 100
        assert plan.personal_limit is None or plan.personal_limit >= 0
        return
    assert told.startswith(name)
    assert repr(text.strip() if name == "compression" else text) in told


# What follows from it.


@pytest.mark.parametrize(
    ("personalise", "limit"), [("none", None), ("all", 0), ("0", 0), ("20", 20)]
)
def test_who_gets_a_row_of_their_own(personalise, limit):
    assert Plan(personalise=personalise).personal_limit == limit


@pytest.mark.parametrize(
    ("model", "preset"), [(model, preset) for model in PRESETS for preset in PRESETS[model]]
)
def test_the_settings_are_those_of_the_preset_with_the_seed(model, preset):
    positive = 4.0 if model == "mmoe" else None
    plan = Plan(model=model, preset=preset, seed=7, positive=positive)
    assert plan.settings() == replace(PRESETS[model][preset], seed=7)
    assert plan.dim == PRESETS[model][preset].rank
    assert replace(plan, rank=5).dim == 5


def test_frozen_clusters_neither_split_nor_reform():
    plain = Plan(preset="least-squares").settings()
    frozen = Plan(frozen=True).settings()
    still = replace(plain.schedule, split_every=0, reassign_every=0)
    assert frozen == replace(plain, schedule=still)


def test_with_auto_validation_data_stop_the_growth():
    plain = Plan(preset="least-squares").settings()
    auto = Plan(compression=" auto").settings()
    stopping = replace(plain.schedule, stop_growing=True, least_gain=LEAST_GAIN)
    assert auto == replace(plain, schedule=stopping)
    assert Plan(compression=" auto").auto
    assert not Plan().auto


@pytest.mark.parametrize("loss", ["ranking", "cross-entropy"])
def test_targets_that_are_never_conversions_are_told(loss):
    log = read({"user": [1, 2], "item": [3, 3], "rating": [1.0, 4.0]})
    plan = Plan(model="deepfm", loss=loss, positive=4.0)
    assert plan.prepared(log).target.max() in (1.0, 4.0)
    with pytest.raises(CelrecError, match=r"positive: no target reaches 4\.5; choose a lower one"):
        replace(plan, positive=4.5).prepared(log)


# What happened, and nothing else.


@pytest.mark.parametrize(
    ("targets", "positive", "kept"),
    [
        ([1.0, 1.0, 1.0], None, [0, 1, 2]),
        ([4.0, 0.0, 2.0], None, [0, 2]),
        ([0.0, 0.0, 0.0], None, [0, 1, 2]),
        ([4.0, 0.0, 2.0], 3.0, [0]),
    ],
)
def test_beside_negatives_all_that_happened_counts_as_1(targets, positive, kept):
    log = read({"user": [1, 2, 3], "item": [1, 1, 2], "rating": targets})
    prepared = Plan(model="mf", negatives=2, positive=positive).prepared(log)
    assert prepared.user.tolist() == kept
    assert prepared.target.tolist() == [1.0] * len(kept)


def test_negatives_and_ranking_are_for_what_happened():
    assert not Plan().only_positive
    assert Plan(negatives=1).only_positive
    assert Plan(model="deepfm", loss="ranking").only_positive


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"negatives": -1}, "negatives must not be negative, not -1"),
        ({"negatives": 1, "model": "din"}, "negatives are not for model 'din'"),
        ({"negatives": 1, "model": "mmoe", "positive": 4.0}, "negatives are not for model 'mmoe'"),
        (
            {"negatives": 1, "model": "deepfm", "loss": "ranking"},
            "negatives are not for loss 'ranking'; leave them out",
        ),
    ],
)
def test_negatives_that_cannot_be_are_told(options, told):
    with pytest.raises(CelrecError, match=told):
        Plan(**options)
