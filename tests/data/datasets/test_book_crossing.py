import polars as pl
import pytest
from polars.testing import assert_frame_equal

from celrec.data.datasets.library import DATASETS

FILE = "BX-CSV-Dump.zip"
IMAGES = ";".join(f'"http://images.amazon.com/{size}.jpg"' for size in "SML")

RATINGS = r"""
"User-ID";"ISBN";"Book-Rating"
"276725";"034545104X";"0"
"276726";"0155061224";"5"
"276747";"0060517794";"9"
"130499";"\"0432534220\"";"6"
""".lstrip()

BOOKS = rf"""
"ISBN";"Book-Title";"Book-Author";"Year-Of-Publication";"Publisher";"Small";"Medium";"Large"
"0155061224";"Rites of Passage; or, Été";"Judith Rae";"2001";"Heinle";{IMAGES}
"034545104X";"Flesh Tones: A Novel";"M. J. Rose";"2002";"Ballantine &amp; Sons";{IMAGES}
"078946697X";"Creating the X-Men (Level 4)\";Michael Teitelbaum";"2000";"DK Inc";{IMAGES}
"0805051732";"The Word \"Desire\"";"\"Rikki\" Ducornet";"1997";"Henry Holt";{IMAGES}
"0449003787";"\"O\" Is for Outlaw";"SUE GRAFTON";"DK";"Ballantine";{IMAGES}
"034545104X";"Flesh Tones, Again";"M. J. Rose";"2003";"Ballantine";{IMAGES}
""".lstrip()

# A missing age is the one field without quotes.
USERS = r"""
"User-ID";"Location";"Age"
"276725";"tyler, texas, usa";NULL
"276726";"seattle, washington, usa";"18"
"130499";"cernusco s\"n, milan, italy";NULL
""".lstrip()


@pytest.fixture(params=["\n", "\r\n"], ids=["LF", "CRLF"])
def tables(request, make_zip):
    texts = {"BX-Book-Ratings.csv": RATINGS, "BX-Books.csv": BOOKS, "BX-Users.csv": USERS}
    members = {
        member: text.replace("\n", request.param).encode("latin-1")
        for member, text in texts.items()
    }
    return DATASETS["book-crossing"].parse({FILE: make_zip(FILE, members)})


def test_ratings_are_parsed_with_their_isbns_as_they_are(tables):
    expected = pl.DataFrame(
        {
            "user": pl.Series([276725, 276726, 276747, 130499], dtype=pl.Int32),
            "item": ["034545104X", "0155061224", "0060517794", r"\"0432534220\""],
            "rating": pl.Series([0.0, 5.0, 9.0, 6.0], dtype=pl.Float32),
        }
    )
    assert_frame_equal(tables.ratings, expected)


def test_implicit_ratings_are_not_used(tables):
    used = tables.ratings.filter(DATASETS["book-crossing"].used)
    assert used["rating"].to_list() == [5.0, 9.0, 6.0]


def test_books_are_parsed_and_the_first_of_an_isbn_is_kept(tables):
    books = {row["item"]: row for row in tables.items.iter_rows(named=True)}
    assert list(books) == ["0155061224", "034545104X", "078946697X", "0805051732", "0449003787"]
    assert books["0155061224"] == {
        "item": "0155061224",
        "title": "Rites of Passage; or, Été",
        "author": "Judith Rae",
        "year": 2001,
        "publisher": "Heinle",
    }
    assert books["034545104X"]["title"] == "Flesh Tones: A Novel"
    assert tables.items.schema["year"] == pl.Int32


def test_an_author_behind_a_hidden_separator_is_found(tables):
    (book,) = tables.items.filter(pl.col("item") == "078946697X").rows(named=True)
    assert book == {
        "item": "078946697X",
        "title": "Creating the X-Men (Level 4)",
        "author": "Michael Teitelbaum",
        "year": 2000,
        "publisher": "DK Inc",
    }


def test_quotes_in_titles_and_authors_are_unescaped(tables):
    texts = {row[0]: row[1:] for row in tables.items.select("item", "title", "author").rows()}
    assert texts["0805051732"] == ('The Word "Desire"', '"Rikki" Ducornet')
    assert texts["0449003787"] == ('"O" Is for Outlaw', "SUE GRAFTON")


def test_a_year_that_is_none_is_missing(tables):
    years = dict(tables.items.select("item", "year").rows())
    assert years["0449003787"] is None
    assert years["0805051732"] == 1997


def test_users_are_parsed_with_and_without_an_age(tables):
    expected = pl.DataFrame(
        {
            "user": pl.Series([276725, 276726, 130499], dtype=pl.Int32),
            "location": [
                "tyler, texas, usa",
                "seattle, washington, usa",
                'cernusco s"n, milan, italy',
            ],
            "age": pl.Series([None, 18, None], dtype=pl.Int32),
        }
    )
    assert_frame_equal(tables.users, expected)
