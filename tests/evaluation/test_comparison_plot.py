import pytest

from celrec import CelrecError
from celrec.evaluation.comparison import ComparisonRow
from celrec.evaluation.comparison_plot import draw_comparison


def standing(embedding, compression, mean, table, error=None):
    return ComparisonRow(
        embedding=embedding,
        compression=compression,
        ticks="✓✓✓",
        rows=table / 4,
        overrun=1.0,
        folds=1,
        metric="mse",
        mean=mean,
        error=error,
        cold=None,
        warm=None,
        table=table,
        index=10.0,
        training=table,
        seconds=1.0,
        relative=None,
        penalty=None,
        clustered_instead=None,
    )


STANDINGS = [
    standing("full", "100%", 0.8, 4000.0),
    standing("cel", "1%", 0.9, 40.0, 0.01),
    standing("cel", "5%", 0.85, 200.0, 0.01),
    *(standing(f"rival {n}", "1%", 1 + n / 10, 40.0 + n) for n in range(25)),
]


@pytest.mark.parametrize(
    ("kind", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_a_picture_is_written_in_the_form_that_its_name_says(tmp_path, kind, begin):
    path = tmp_path / f"picture.{kind}"
    draw_comparison(STANDINGS, path, "title")
    assert path.read_bytes().startswith(begin)
    assert list(tmp_path.iterdir()) == [path]


def test_all_that_is_compared_is_named_in_the_picture(tmp_path):
    import matplotlib as mpl

    path = tmp_path / "picture.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw_comparison(STANDINGS, path, "what it shows")
    text = path.read_text()
    for word in (
        "what it shows",
        "test MSE",
        "bytes that serve",
        *(s.embedding for s in STANDINGS),
    ):
        assert word in text


@pytest.mark.parametrize("name", ["picture", "picture.txt", "picture.jpeg2"])
def test_other_names_are_refused(tmp_path, name):
    with pytest.raises(CelrecError, match="pictures end in png, svg, pdf"):
        draw_comparison(STANDINGS, tmp_path / name, "title")
    assert not list(tmp_path.iterdir())
