from itertools import pairwise

import polars as pl
import pytest
import torch

import celrec
from celrec.config.plan import Plan
from celrec.data.split import Split
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.recommender.model import Model
from celrec.runs.run_folder import save_run, trained_run
from tests.reporting.written import written

EVIL = "<script>document.title='evil'</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page about 300 items with titles, one of them evil, and 40 users."""
    folder = tmp_path_factory.mktemp("shown")
    planted = celrec.Planted(rows=6000, users=40, items=300, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(folder / "log.csv")
    titles = [EVIL, *(f"Film no. {number}" for number in range(1, 300))]
    features = pl.DataFrame({"item": range(300), "title": titles})
    log = celrec.read(folder / "log.csv", item_features=features)
    split = Split.random(log)
    plan = Plan(compression="5", side="both", rank=4)
    fitted = celrec.fit(split, plan)
    source = {"data": str(folder / "log.csv"), "fold": None, "seed": 0}
    run = folder / "run"
    save_run(
        run,
        trained_run(
            split.train_and_valid(), fitted.model, plan, fitted.validation_records, source, {}
        ),
    )
    return written(run).path.as_uri()


@pytest.fixture
def shown(open_page, address):
    return open_page(address, offline=True)


def explorer(page, key="items"):
    return page.locator(f".explorer[data-key={key}]")


def numbers(page, column):
    values = (
        explorer(page)
        .locator("tbody > tr[data-number]")
        .evaluate_all("(rows, key) => rows.map((row) => Number(row.dataset[key]))", column)
    )
    return [float(value) for value in values]


def test_without_a_network_nothing_is_asked_for(open_page, address):
    asked = []
    page = open_page("about:blank", offline=True)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_load_state("networkidle")
    assert asked == [address]
    assert page.title().endswith("celrec report")


def test_a_title_finds_its_cluster_and_is_highlighted(shown):
    items = explorer(shown)
    items.get_by_role("searchbox").fill("film no. 123")
    assert items.get_by_role("status").inner_text() == "1 id in 1 cluster"
    visible = items.locator("tbody > tr[data-number]:visible")
    assert visible.count() == 1
    assert items.locator("tr.hit mark").first.inner_text() == "Film no. 123"
    assert visible.get_by_role("button").get_attribute("aria-expanded") == "true"
    items.get_by_role("searchbox").fill("no such film")
    assert items.get_by_role("status").inner_text() == "Nothing found"
    assert visible.count() == 0
    items.get_by_role("searchbox").fill("")
    assert visible.count() == 5
    assert items.locator("mark").count() == 0


def test_an_id_and_a_number_of_a_cluster_are_found_too(shown):
    users = explorer(shown, "users")
    users.get_by_role("searchbox").fill("39")
    assert users.locator("tr.hit mark").first.inner_text() == "39"
    items = explorer(shown)
    items.get_by_role("searchbox").fill("3")
    assert items.locator("tbody > tr[data-number='3']").is_visible()


def test_words_that_are_markup_are_shown_as_they_are(shown):
    explorer(shown).get_by_role("searchbox").fill(EVIL)
    assert explorer(shown).locator("tr.hit mark").first.inner_text() == EVIL
    assert "evil" not in shown.title()


@pytest.mark.parametrize(
    ("name", "column"), [("Ids", "size"), ("Mean target", "mean"), ("Interactions", "interactions")]
)
def test_clusters_can_be_sorted_by_each_column(shown, name, column):
    head = explorer(shown).locator(f"thead th[data-key={column}]")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert numbers(shown, column) == sorted(numbers(shown, column), reverse=True)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert numbers(shown, column) == sorted(numbers(shown, column))
    assert explorer(shown).locator("thead th[aria-sort=none]").count() >= 3
    assert name in head.inner_text()


def test_a_cluster_shows_more_and_more_of_its_members(shown):
    sizes = dict(zip(numbers(shown, "number"), numbers(shown, "size"), strict=True))
    number, size = max(sizes.items(), key=lambda pair: pair[1])
    assert size > 50
    row = explorer(shown).locator(f"tr[data-number='{int(number)}']")
    row.get_by_role("button").press("Enter")
    members = explorer(shown).locator("tr.detail tbody tr")
    assert members.count() == 50
    while (more := explorer(shown).get_by_role("button", name="Show")).count():
        more.click()
    assert members.count() == size
    row.get_by_role("button").press("Enter")
    assert explorer(shown).locator("tr.detail").count() == 0


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A page about 90 clusters, of which 89 were split from the first."""
    table = ClusteredEmbedding(200, 2, max_clusters=90)
    for number in range(1, 90):
        table.split(0, torch.tensor([2 * number, 2 * number + 1]))
    log = celrec.read({"user": [1] * 200, "item": range(200), "rating": [3.0] * 200})
    folder = tmp_path_factory.mktemp("crowded") / "run"
    model = Model(FullEmbedding(1, 2), table)
    save_run(folder, trained_run(log, model, Plan(compression="90", rank=2), {}, {}, {}))
    return written(folder).path.as_uri()


def test_of_very_many_clusters_the_first_are_shown_until_somebody_wants_all(open_page, crowded):
    page = open_page(crowded, offline=True)
    visible = explorer(page).locator("tbody > tr[data-number]:visible")
    assert visible.count() == 60
    explorer(page).get_by_role("searchbox").fill("199")
    assert visible.count() == 1
    explorer(page).get_by_role("searchbox").fill("")
    assert visible.count() == 60
    page.locator("svg.wide a.leaf[data-cluster='77'] .target").click()
    assert page.locator("#items-77").is_visible()
    explorer(page).get_by_role("button", name="Show all 90 clusters").click()
    assert visible.count() == 90
    assert page.get_by_role("region", name="Split tree of items").is_visible()


def test_the_tree_leads_to_a_cluster(open_page, address):
    # Where motion is unwelcome, the page is there at once instead of gliding.
    shown = open_page(address, offline=True, reduced_motion="reduce")
    shown.locator(".tree svg.wide a.leaf[data-cluster='2'] .target").first.click()
    row = shown.locator("#items-2")
    assert row.get_by_role("button").get_attribute("aria-expanded") == "true"
    assert row.evaluate("row => row.getBoundingClientRect().top") < 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_they_are_changed(open_page, address, scheme):
    page = open_page(address, offline=True, color_scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(paper)
    button = page.get_by_role("button", name="Dark colours")
    assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
    button.click()
    assert button.get_attribute("aria-pressed") == str(scheme == "light").lower()
    assert page.evaluate(paper) != first
    button.click()
    assert page.evaluate(paper) == first


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_scrolls_sideways(open_page, address, width):
    page = open_page(address, offline=True, viewport={"width": width, "height": 800})
    explorer(page).locator("tbody button").first.click()
    explorer(page, "users").get_by_role("searchbox").fill("1")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = page.locator("svg.picture:visible")
    assert shown.count() == page.locator("svg.picture").count() / 2


CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!colour.endsWith(", 0)") && !colour.includes("/")) return colour;
    }
    return "white";
  };
  const low = [];
  for (const one of document.querySelectorAll("main *, footer *, header *")) {
    const own = [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !one.checkVisibility() || one.closest("script")) continue;
    const style = getComputedStyle(one);
    const x = luminance(one.closest("svg") ? style.fill : style.color);
    const y = luminance(behind(one));
    const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (ratio < 4.5 && !one.classList.contains("way")) low.push([one.textContent, ratio]);
  }
  return low;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_stand_out_from_the_paper(open_page, address, scheme):
    page = open_page(address, offline=True, color_scheme=scheme)
    explorer(page).locator("tbody button").first.click()
    assert page.evaluate(CONTRAST) == []


def test_the_page_can_be_printed(shown):
    shown.emulate_media(media="print")
    assert not shown.locator("header.top").is_visible()
    assert shown.locator("#clusters").is_visible()
    assert shown.evaluate("getComputedStyle(document.body).colorScheme") == "light"


def test_everything_has_a_name_for_those_who_listen(shown):
    assert shown.get_by_role("navigation").get_by_role("link").count() == 7
    for box in shown.get_by_role("searchbox").all():
        assert box.evaluate("box => box.labels.length") == 1
    for picture in shown.locator("svg.picture").all():
        assert picture.get_attribute("aria-label")
    levels = shown.locator("h1, h2, h3").evaluate_all("all => all.map((one) => +one.tagName[1])")
    assert all(after - before <= 1 for before, after in pairwise(levels))
