"""The tables in RESULTS.md are those of the results that are kept."""

from pathlib import Path

from reproduce.results_page import filled

ROOT = Path(__file__).parents[1]


def test_the_page_shows_the_results_that_are_kept(tmp_path):
    for cells in (ROOT / "results").glob("*.jsonl"):
        (tmp_path / cells.name).symlink_to(cells)
    page = (ROOT / "RESULTS.md").read_text()
    assert filled(page, tmp_path) == page, "run `make results`"
