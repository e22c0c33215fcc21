import gzip

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from celrec.data.datasets.library import DATASETS
from celrec.errors import CelrecError

PRODUCTS = (
    "{'asin': '0078764343', 'title': 'It\\'s a \"game\", isn\\'t it?', 'price': 37.98, "
    "'brand': 'Sony', 'salesRank': {'Video Games': 28655}, "
    "'categories': [['Electronics', 'TV'], ['Video Games', 'Xbox 360', 'Games']]}\n"
    "{'asin': 'B00000JL6V', 'description': \"Mario's untitled\", 'categories': [['Video Games']]}\n"
    "{'asin': 'B00000KDU2', 'title': \"Caf\\xe9 \\u2603\", 'categories': [[]]}\n"
    "{'asin': 'B00000KDU3', 'brand': 'Atari'}\n"
)


@pytest.fixture
def ratings(tmp_path):
    path = tmp_path / "ratings_Video_Games.csv"
    path.write_text(
        "AB9S9279OZ3QO,0078764343,5.0,1373155200\n"
        "A24SSUT5CSW8BH,B00000JL6V,1.0,1377302400\n"
        "AB9S9279OZ3QO,B00000JL6V,3.0,1372896000\n"
    )
    return path


@pytest.fixture
def parse(tmp_path, ratings):
    """The tables that are parsed with `products` as the metadata."""

    def parse(products):
        path = tmp_path / "meta_Video_Games.json.gz"
        content = products.encode() if isinstance(products, str) else products
        path.write_bytes(gzip.compress(content))
        return DATASETS["amazon-video-games"].parse({ratings.name: ratings, path.name: path})

    return parse


def test_ratings_without_a_header_are_parsed(parse):
    expected = pl.DataFrame(
        {
            "user": ["AB9S9279OZ3QO", "A24SSUT5CSW8BH", "AB9S9279OZ3QO"],
            "item": ["0078764343", "B00000JL6V", "B00000JL6V"],
            "rating": pl.Series([5.0, 1.0, 3.0], dtype=pl.Float32),
            "timestamp": [1373155200, 1377302400, 1372896000],
        }
    )
    assert_frame_equal(parse(PRODUCTS).ratings, expected)


def test_products_are_parsed_whatever_they_lack(parse):
    expected = pl.DataFrame(
        {
            "item": ["0078764343", "B00000JL6V", "B00000KDU2", "B00000KDU3"],
            "title": ["It's a \"game\", isn't it?", None, "Café ☃", None],
            "brand": ["Sony", None, None, "Atari"],
            "category": ["Games", "Video Games", None, None],
        }
    )
    assert_frame_equal(parse(PRODUCTS).items, expected)


def test_the_metadata_may_be_absent(ratings):
    tables = DATASETS["amazon-video-games"].parse({ratings.name: ratings})
    assert len(tables.ratings) == 3
    assert tables.items is None
    assert tables.users is None


def test_only_line_feeds_end_a_product(parse):
    # Characters at which str.splitlines would cut as well.
    items = parse("{'asin': 'A1', 'title': 'one\u2028two\x85three'}\n{'asin': 'A2'}\n").items
    assert items["item"].to_list() == ["A1", "A2"]
    assert items["title"][0] == "one\u2028two\x85three"


@pytest.mark.parametrize(
    "line",
    [
        "{'asin': 'A1', 'title'",
        "{'title': 'no id'}",
        "['a', 'list']",
        "{'asin': 'A1', 'categories': 7}",
        "__import__('os').getcwd()",
    ],
)
def test_a_line_that_is_no_product_is_reported_with_its_number(parse, line):
    with pytest.raises(CelrecError, match=r"meta_Video_Games\.json\.gz, line 2: not a product"):
        parse("{'asin': 'A0'}\n" + line + "\n")


def test_metadata_that_is_not_utf8_is_reported(parse):
    with pytest.raises(CelrecError, match=r"meta_Video_Games\.json\.gz, line 2"):
        parse(b"{'asin': 'A0'}\n{'asin': 'A1', 'title': 'Caf\xe9'}\n")


def test_damaged_metadata_is_reported(tmp_path, ratings):
    path = tmp_path / "meta_Video_Games.json.gz"
    path.write_bytes(gzip.compress(PRODUCTS.encode())[:-20])
    with pytest.raises(CelrecError, match=r"meta_Video_Games\.json\.gz: damaged archive"):
        DATASETS["amazon-video-games"].parse({ratings.name: ratings, path.name: path})


def test_both_categories_have_files_of_their_own():
    names = [
        [f.name for f in DATASETS[f"amazon-{n}"].files] for n in ("video-games", "electronics")
    ]
    assert names == [
        ["ratings_Video_Games.csv", "meta_Video_Games.json.gz"],
        ["ratings_Electronics.csv", "meta_Electronics.json.gz"],
    ]
