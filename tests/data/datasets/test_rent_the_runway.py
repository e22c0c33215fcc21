import gzip
import json
from datetime import UTC, datetime

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from celrec.data.datasets.library import DATASETS
from celrec.errors import CelrecError

FILE = "renttherunway_final_data.json.gz"


def review(user, item, rating, date="April 20, 2016", category="romper", **more):
    return {
        "fit": "fit",
        "user_id": user,
        "bust size": "34d",
        "item_id": item,
        "rating": rating,
        "review_text": 'An "adorable" romper! Pockets,\nand a zipper: é',
        "category": category,
        "size": 14,
        "review_date": date,
        **more,
    }


@pytest.fixture
def parse(tmp_path):
    """The tables that are parsed from these lines."""

    def parse(*lines):
        path = tmp_path / FILE
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_bytes(gzip.compress("".join(text + "\n" for text in texts).encode()))
        return DATASETS["rent-the-runway"].parse({FILE: path})

    return parse


def test_reviews_become_ratings_with_days_as_times(parse):
    tables = parse(
        review("420272", "2260466", "10"),
        review("273551", "153475", None, date="June 18, 2013", category="gown"),
        review("420272", "153475", "8", date="January 1, 2018", category="dress", weight="137lbs"),
    )
    days = [datetime(*day, tzinfo=UTC) for day in ((2016, 4, 20), (2013, 6, 18), (2018, 1, 1))]
    expected = pl.DataFrame(
        {
            "user": pl.Series([420272, 273551, 420272], dtype=pl.Int32),
            "item": pl.Series([2260466, 153475, 153475], dtype=pl.Int32),
            "rating": pl.Series([10.0, None, 8.0], dtype=pl.Float32),
            "timestamp": pl.Series([int(day.timestamp()) for day in days], dtype=pl.Int64),
        }
    )
    assert_frame_equal(tables.ratings, expected)
    assert tables.users is None


def test_an_item_has_the_category_that_comes_first(parse):
    tables = parse(
        review("1", "20", "10", category="romper"),
        review("2", "10", "10", category="gown"),
        review("3", "20", "10", category="dress"),
    )
    expected = pl.DataFrame(
        {"item": pl.Series([20, 10], dtype=pl.Int32), "category": ["romper", "gown"]}
    )
    assert_frame_equal(tables.items, expected)


def test_reviews_without_a_rating_are_not_used(parse):
    dataset = DATASETS["rent-the-runway"]
    ratings = parse(review("1", "20", "10"), review("2", "10", None)).ratings
    assert ratings.filter(dataset.used).get_column("user").to_list() == [1]


@pytest.mark.parametrize(
    "line",
    [
        '{"user_id": "1", "item_id"',
        review("someone", "2", "10"),
        review("1", "2", "10", date="20/04/2016"),
    ],
)
def test_a_damaged_line_is_reported(parse, line):
    with pytest.raises(CelrecError, match=FILE) as message:
        parse(review("1", "20", "10"), line)
    assert "\n" not in str(message.value)


def test_an_empty_file_is_reported(parse):
    with pytest.raises(CelrecError, match=FILE):
        parse()


def test_a_damaged_archive_is_reported(tmp_path):
    path = tmp_path / FILE
    path.write_bytes(gzip.compress(json.dumps(review("1", "2", "10")).encode())[:-12])
    with pytest.raises(CelrecError, match="damaged archive"):
        DATASETS["rent-the-runway"].parse({FILE: path})
