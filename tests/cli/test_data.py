import json

import pytest

from celrec.cli.main import main
from celrec.data.datasets.library import DATASETS

# Three users, four items; ann and x meet twice.
CSV = """user_id,item_id,rating,timestamp
ann,x,5,1000000000
ann,x,3,1000000060
ann,y,3,1000086400
bob,x,1,1000000000
cat,z,3,999999999
cat,w,4,1000000000
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(CSV)
    return str(path)


@pytest.fixture
def command(capsys):
    """A function that runs a command that succeeds, and gives what it prints."""

    def command(*words):
        code = main(list(words))
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return captured.out

    return command


@pytest.fixture
def complaint(capsys):
    """A function that runs a command that fails, and gives the one line that it prints."""

    def complaint(*words):
        code = main(list(words))
        captured = capsys.readouterr()
        assert (code, captured.out, captured.err.count("\n")) == (2, "", 1)
        return captured.err

    return complaint


def squeezed(text):
    return [" ".join(line.split()) for line in text.splitlines()]


# list


def test_the_list_names_every_data_set_and_its_size(command):
    lines = squeezed(command("data", "list"))
    for name, dataset in DATASETS.items():
        here = "here" if name == "synthetic" else "not here"
        assert f"{name} {dataset.counts} {here}" in lines


def test_the_list_as_json_has_every_data_set(command):
    listing = json.loads(command("data", "list", "--json"))
    assert [entry["name"] for entry in listing] == list(DATASETS)
    (entry,) = [entry for entry in listing if entry["name"] == "ml-1m"]
    assert (entry["rows"], entry["users"], entry["items"]) == (1_000_209, 6_040, 3_706)
    assert entry["urls"] == ["https://files.grouplens.org/datasets/movielens/ml-1m.zip"]
    assert (entry["here"], entry["folder"]) == (False, None)


def test_the_list_shows_what_is_on_this_machine(command, cache):
    folder = cache / "ml-1m"
    folder.mkdir()
    (folder / "ratings.parquet").write_bytes(b"")
    assert any(
        line.startswith("ml-1m ") and line.endswith("items here")
        for line in squeezed(command("data", "list"))
    )
    listing = {entry["name"]: entry for entry in json.loads(command("data", "list", "--json"))}
    assert (listing["ml-1m"]["here"], listing["ml-1m"]["folder"]) == (True, str(folder))
    assert (listing["synthetic"]["here"], listing["synthetic"]["folder"]) == (True, None)
    assert not listing["ml-100k"]["here"]


# describe


def test_a_file_is_described_as_json(command, log):
    about = json.loads(command("data", "describe", log, "--json"))
    assert about["data"] == log
    assert (about["rows"], about["users"], about["items"]) == (6, 3, 4)
    assert about["density"] == pytest.approx(5 / 12)
    assert about["repeated_pairs"] == 1
    assert about["dropped"] == 0
    assert (about["target_min"], about["target_max"]) == (1.0, 5.0)
    assert about["target_mean"] == pytest.approx(19 / 6)
    assert about["histogram"] == [[1.0, 1.0, 1], [3.0, 3.0, 3], [4.0, 4.0, 1], [5.0, 5.0, 1]]
    assert about["cold_users"] == {"2": 2, "5": 3, "20": 3}
    assert about["cold_items"] == {"2": 3, "5": 4, "20": 4}
    assert about["popularity"]["0.5"] == pytest.approx(4 / 6)
    assert about["first"] == "2001-09-09T01:46:39+00:00"
    assert about["last"] == "2001-09-10T01:46:40+00:00"


def test_a_file_is_described_in_words(command, log):
    page = command("data", "describe", log)
    lines = squeezed(page)
    assert log in page.replace("\n", "")
    assert "interactions 6" in lines
    assert "users 3 (2.0 interactions each)" in lines
    assert "items 4 (1.5 interactions each)" in lines
    assert "density 41.6667%" in lines
    assert "repeated pairs 1" in lines
    assert "target 1 … 5, mean 3.1667 ± 1.2134 (sd)" in lines
    assert "time 2001-09-09T01:46:39+00:00 … 2001-09-10T01:46:40+00:00" in lines
    assert "at most 2 2 66.7% 3 75.0%" in lines
    assert any(line.startswith("3 3 50.0% █") for line in lines)
    assert not any(line.startswith("rows left out") for line in lines)


def test_a_file_without_times_is_described(command, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item,rating\n1,2,3.5\n")
    assert "time no timestamps" in squeezed(command("data", "describe", str(path)))
    about = json.loads(command("data", "describe", str(path), "--json"))
    assert (about["first"], about["last"]) == (None, None)


def test_many_different_ratings_are_shown_in_ten_intervals(command, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item,rating\n" + "".join(f"1,{n},{n}\n" for n in range(101)))
    histogram = json.loads(command("data", "describe", str(path), "--json"))["histogram"]
    assert [span[:2] for span in histogram] == [[10.0 * n, 10.0 * n + 10] for n in range(10)]
    assert sum(span[2] for span in histogram) == 101


def test_columns_and_the_separator_can_be_given(command, tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("who~what~liked~on\nann~x~1~5\nbob~y~0~6\n")
    names = ["--user-column", "who", "--item-column", "what", "--target-column", "liked"]
    names += ["--timestamp-column", "on", "--separator", "~"]
    about = json.loads(command("data", "describe", str(path), *names, "--json"))
    assert (about["users"], about["items"], about["target_mean"]) == (2, 2, 0.5)
    assert about["first"] == "1970-01-01T00:00:05+00:00"


# Markup and emoji codes elsewhere.
@pytest.mark.parametrize("name", ["log[old].csv", "log[/bold].csv", "log:on:.csv"])
def test_the_name_of_a_file_is_shown_as_it_is(command, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(CSV)
    assert command("data", "describe", name).splitlines()[0].strip() == name


def test_invalid_rows_are_left_out_on_request_and_counted(command, complaint, log, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(CSV + "dan,x,much,1\n,x,4,1\n")
    told = complaint("data", "describe", str(path))
    assert f"{path}, line 8" in told
    assert "--drop-invalid" in told
    lines = squeezed(command("data", "describe", str(path), "--drop-invalid"))
    assert "rows left out 2" in lines
    assert "interactions 6" in lines
    about = json.loads(command("data", "describe", str(path), "--drop-invalid", "--json"))
    whole = json.loads(command("data", "describe", log, "--json"))
    assert about == {**whole, "data": str(path), "dropped": 2}


def test_a_missing_file_is_told(complaint, tmp_path):
    path = tmp_path / "nowhere.csv"
    assert complaint("data", "describe", str(path)) == f"celrec: {path}: no such file\n"


def test_a_folder_is_told(complaint, tmp_path):
    assert f"{tmp_path}: is a folder" in complaint("data", "describe", str(tmp_path))


def test_a_missing_column_is_told_with_those_that_there_are(complaint, log):
    told = complaint("data", "describe", log, "--item-column", "sku")
    assert "'sku'" in told
    assert "'item_id'" in told


def test_a_column_that_cannot_be_guessed_is_told_with_its_option(complaint, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,thing,rating\n1,2,3\n")
    assert "--item-column" in complaint("data", "describe", str(path))


def test_an_empty_file_is_told(complaint, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("")
    assert str(path) in complaint("data", "describe", str(path))


def test_an_unknown_name_is_told_with_the_known_ones(complaint):
    told = complaint("data", "describe", "ml-2m")
    assert all(name in told for name in DATASETS)


def test_a_data_set_that_is_not_here_is_told(complaint):
    assert "celrec data fetch ml-1m" in complaint("data", "describe", "ml-1m")


def test_the_synthetic_data_set_is_described(command):
    about = json.loads(command("data", "describe", "synthetic", "--json"))
    assert (about["rows"], about["users"], about["items"]) == (100_000, 1_000, 1_700)
    assert about["item_features"] == ["cluster"]


@pytest.mark.usefixtures("data_folder")
def test_real_data_are_described(command):
    about = json.loads(command("data", "describe", "ml-1m", "--json"))
    assert (about["rows"], about["users"], about["items"]) == (1_000_209, 6_040, 3_706)
    assert about["density"] == pytest.approx(1_000_209 / (6_040 * 3_706))
    assert about["repeated_pairs"] == 0
    assert [span[2] for span in about["histogram"]] == [56_174, 107_557, 261_197, 348_971, 226_310]
    assert about["cold_users"] == {"2": 0, "5": 0, "20": 86}
    assert (about["first"][:4], about["last"][:4]) == ("2000", "2003")
    lines = squeezed(command("data", "describe", "ml-1m"))
    assert "interactions 1,000,209" in lines
    assert "user features gender, age, occupation, zip" in lines


# fetch


def test_fetching_what_is_here_says_where_it_is(command, cache):
    folder = cache / "ml-1m"
    folder.mkdir()
    (folder / "ratings.parquet").write_bytes(b"")
    shown = " ".join(command("data", "fetch", "ml-1m").split())
    assert shown.startswith("ml-1m: ")
    assert str(folder) in shown
    fetched = json.loads(command("data", "fetch", "ml-1m", "--json"))
    assert fetched == {"name": "ml-1m", "folder": str(folder), "origin": "a copy that was here"}


def test_fetching_an_unknown_data_set_is_told(complaint):
    assert "ml-2m: no such data set" in complaint("data", "fetch", "ml-2m")


def test_fetching_the_synthetic_data_set_is_told(complaint):
    assert "nothing to fetch" in complaint("data", "fetch", "synthetic")


def test_fetching_into_a_folder_that_cannot_be_written_to_is_told(complaint, tmp_path, monkeypatch):
    (tmp_path / "file.txt").write_text("no folder")
    folder = tmp_path / "file.txt/cache"
    monkeypatch.setenv("CELREC_CACHE", str(folder))
    told = complaint("data", "fetch", "ml-100k")
    assert "CELREC_CACHE" in told
    assert str(folder) in told
