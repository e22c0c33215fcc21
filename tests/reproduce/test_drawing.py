import matplotlib as mpl
import pytest

from reproduce.drawing import draw_means, drawing
from reproduce.fold_mean import FoldMean

POINTS = {2.0: FoldMean(0.8, 0.1, 5), 1.0: FoldMean(0.9, 0.1, 5), 3.0: FoldMean.of([])}


def picture(folder):
    with drawing(folder, "a", 4, 3) as figure:
        draw_means(figure.add_subplot(), POINTS, "CEL", 0)
    return (folder / "a.png").read_bytes(), (folder / "a.svg").read_bytes()


def test_the_same_numbers_make_the_same_files(tmp_path):
    first = picture(tmp_path / "one")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):  # somebody's taste
        assert picture(tmp_path / "two") == first
    assert b"<dc:date>" not in first[1]


def test_nothing_of_the_style_is_left_behind(tmp_path):
    before = dict(mpl.rcParams)
    picture(tmp_path)
    assert dict(mpl.rcParams) == before


def test_what_fails_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError), drawing(tmp_path, "a", 4, 3):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_line_goes_through_known_means_in_order_within_its_band(tmp_path):
    with drawing(tmp_path, "a", 4, 3) as figure:
        axes = figure.add_subplot()
        draw_means(axes, POINTS, "CEL", 0)
        draw_means(axes, {1.0: FoldMean.of([])}, "nothing", 1)
        draw_means(axes, {1.0: FoldMean.of([0.5])}, "one fold", 8)
        lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
        (band,) = axes.collections
        edges = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6).tolist()}
    assert lines == {"CEL": [[1.0, 0.9], [2.0, 0.8]], "one fold": [[1.0, 0.5]]}
    assert edges == {(1.0, 0.8), (1.0, 1.0), (2.0, 0.7), (2.0, 0.9)}
