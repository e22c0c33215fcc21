"""The page, in a real browser."""

import shutil

import pytest

from tests.service.conftest import Server

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """A function that opens an address; whatever the browser complains of fails the test."""
    complaints, contexts = [], []

    def heard(message):
        if message.type == "error" and "status of 422" not in message.text:
            complaints.append(message.text)

    def asked(request):
        if not request.url.startswith("http://127.0.0.1:"):
            complaints.append(request.url)

    def go(address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", heard)
        page.on("request", asked)
        page.goto(address)
        return page

    yield go
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture(scope="module")
def server(online_once, tmp_path_factory):
    folder = shutil.copytree(online_once, tmp_path_factory.mktemp("page") / "online")
    server = Server(folder)
    yield server
    server.stop()
    server.process.stdout.close()
    server.process.stderr.close()


def answers(page):
    return [text.strip() for text in page.locator(".answer .what").all_inner_texts()]


def test_an_event_changes_what_is_recommended(server, visit):
    page = visit(server.address)
    page.fill("#user-text", "u7")
    page.click("#user-list button:text-is('u7')")
    page.wait_for_selector("#who-name:text-is('u7')")
    page.check("#with-seen")
    page.wait_for_selector("#answers li:nth-child(10)")
    page.uncheck("#with-seen")
    page.fill("#event-user", "somebody new")
    page.fill("#event-item", "3")
    page.fill("#event-target", "9")
    page.click("#event-form button")
    page.wait_for_selector(".log .good:has-text('learned after')")
    page.wait_for_selector("#who-name:text-is('somebody new')")
    before = answers(page)
    assert "3" not in before
    first = before[0]
    page.click(".answer >> nth=0")
    page.wait_for_selector(f"#why .name:text-is('{first}')")
    assert page.input_value("#event-item") == first
    page.fill("#event-target", "1")
    page.click("#event-form button")
    page.wait_for_selector(".log li:nth-child(2).good")
    page.wait_for_selector(".log li:nth-child(1).good")
    page.wait_for_selector("#who-about:text-is('2 interactions')")
    assert first not in answers(page)
    assert page.locator(".move.up, .move.new").count() > 0


def test_a_refusal_is_shown(server, visit):
    page = visit(server.address)
    page.wait_for_selector(".answer")
    page.fill("#event-item", "3")
    page.fill("#event-target", "99999999999")
    page.click("#event-form button")
    page.wait_for_selector(".log .bad:has-text('less than or equal to')")


def test_clusters_show_their_members(server, visit):
    page = visit(server.address)
    page.click(".group >> nth=0")
    page.wait_for_selector("#members li")


def test_who_is_not_known_gets_what_newcomers_get(server, visit):
    page = visit(server.address)
    page.wait_for_selector(".answer")
    page.fill("#user-text", "nobody-at-all")
    page.wait_for_selector("#user-list:has-text('No user like that')")
    page.press("#user-text", "Enter")
    page.wait_for_selector("#who-about:has-text('not known yet')")
    assert len(answers(page)) == 10


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_can_be_read(server, visit, width, scheme):
    size = {"width": width, "height": 800}
    page = visit(server.address, viewport=size, color_scheme=scheme)
    page.click(".answer >> nth=0")
    page.wait_for_selector("#why .name")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    contrast = page.evaluate(CONTRAST)
    assert min(contrast.values()) >= 4.5, contrast


CONTRAST = """() => {
  const channel = (value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  };
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) =>
    0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const told = {};
  for (const choice of ["h1", "h2", "h3", ".small", ".answer .rank", ".cluster", ".primary",
                        ".status", ".count", "a", ".field label", ".chips button"]) {
    for (const node of document.querySelectorAll(choice)) {
      if (!node.offsetParent) continue;
      const [one, other] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
      const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      told[choice] = Math.min(told[choice] ?? 99, ratio);
    }
  }
  return told;
}"""


def test_titles_and_ids_are_text_whatever_they_hold(make_offline, tmp_path, start, visit):
    titles = [f"{number} {EVIL}" for number in range(30)]
    server = start(make_offline(tmp_path / "evil", titles=titles))
    page = visit(server.address)
    page.click(".answer >> nth=0")
    page.wait_for_selector("#why .name")
    assert EVIL in page.locator("#why .name").inner_text()
    page.click(".group >> nth=0")
    page.wait_for_selector("#members li")
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0
    assert not page.locator("#event-form").is_visible()
    assert "takes no events" in page.locator("#status").inner_text()


def test_the_api_is_shown_without_a_network(server, visit):
    page = visit(f"{server.address}/docs")
    page.wait_for_selector(".doc .verb")
    assert page.locator(".doc h2:has-text('/recommend')").count() == 2
