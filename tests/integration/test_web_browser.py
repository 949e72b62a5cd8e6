"""The pages in a real browser: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import exchange
from pages import path_of, serving
from retained import opened, ref_of, text_of

from offload import Offloader, open_store

axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed (group browser)")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (group browser)")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no chromium (apt-get install chromium)", allow_module_level=True)

# The most pixels above the first row of a list, and above the text of a record.
LIST, RECORD = 320, 220
HOSTILE = (
    '<script>document.title="owned"</script><img src=x onerror="document.title=1"> \x1b[31m '
    + "wide" * 300
    + "\n"
)

# All rules for WCAG 2.2 AA, and what axe calls best practice.
VIOLATIONS = """async () => (await axe.run({resultTypes: ['violations'], selectors: false, runOnly: [
  'wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice',
]})).violations.map(each => [each.id, each.nodes[0].html])"""
# The pixels above the first row of a list, or the first line of a text.
FIRST = "ol.text li, .table tbody tr, .data tbody tr, .tree"
TOP = f"document.querySelector('{FIRST}').getBoundingClientRect().top"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # As root, as in a container, Chromium does not start with its sandbox.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A store with records of several kinds in one session, and their refs."""
    folder = tmp_path_factory.mktemp("store")
    off = opened(str(folder), "a session with a name of its own " * 3)
    value = json.dumps({"rows": [{"name": n} for n in range(300)]})
    log = "".join(f"05:00:{n % 60:02} {'ERROR' if n % 90 == 0 else 'INFO'} line {n}\n" for n in range(3000))
    texts = {
        "hostile": HOSTILE * 20,
        "json": value,
        "log": log,
        "gone": text_of(1),
        "small": log[:900],
        "table": "id,name,total\n" + "".join(f"{n},name {n},{n * 7}\n" for n in range(60)),
        "styled": "".join(f"\x1b[3{n % 8};{n % 5}m{n}\x1b[4{n % 8}mword\x1b[0m\n" for n in range(40)),
    }
    refs = {
        name: ref_of(off.offload_text(t, tool_name=f"{name}_tool", tool_use_id=name))
        for name, t in texts.items()
    }
    talk = Offloader(str(folder), session="talk", journal=True, model="claude-sonnet-5")
    messages: list[Any] = [{"role": "user", "content": "a question of some length\n" * 100}]
    for n in range(3):
        talk.offload(messages)
        messages += exchange(n)
    return folder, refs


@pytest.fixture(scope="module")
def site(store, browser) -> Iterator[tuple[str, Any]]:
    """The address of the served store, and the cookies of a signed-in browser without JavaScript."""
    with serving(store[0], "--allow-changes") as (address, _):
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(address)
        page.wait_for_url(address.partition("?")[0])
        cookies = context.cookies()
        context.close()
        yield address.partition("/?")[0], cookies


@pytest.fixture
def paths(store) -> dict[str, int | None]:
    """The addresses of one page of each kind, and the most pixels above its content in a wide window."""
    session, refs, talk = path_of("a session with a name of its own " * 3), store[1], path_of("talk")
    names = ("small", "json", "hostile", "table", "styled")
    small, value, hostile, table, styled = (f"{session}/r/{refs[name]}" for name in names)
    return {
        "/": LIST,
        session: LIST,
        "/retention?session_records=1&live_for=0s": None,
        f"{talk}/conversation": None,
        f"{talk}/timeline": None,
        f"{talk}/evidence?at=1": None,
        talk: None,
        small: RECORD,
        hostile: RECORD,
        styled: RECORD,
        f"{table}?sort=3&desc=1": LIST,
        f"{small}/model": None,
        f"{value}/outline": LIST,
        f"{small}/search?q=INFO": None,
        f"{value}/query": None,
        f"{small}/changes": None,
    }


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_page_begins_with_its_content_fits_the_screen_and_is_accessible(site, browser, paths, turn):
    address, cookies = site
    # Its policy would keep the checker out.
    context = browser.new_context(bypass_csp=True)
    context.add_cookies(cookies)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    checker = (Path(axe.__file__).parent / "axe.min.js").read_text()

    for number, (path, most) in enumerate(paths.items(), turn):
        page.set_viewport_size({"width": 1280, "height": 800})
        page.emulate_media(color_scheme="light")
        assert page.goto(address + path).status == 200, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, path
        assert page.title().endswith("· offload")  # no script has set another
        if most is not None:
            assert page.evaluate(TOP) <= most, path
        # The checks of a page take long: one of the windows in each turn.
        if number % 2:
            page.set_viewport_size({"width": 380, "height": 800})
            page.emulate_media(color_scheme="dark")
            assert page.evaluate("document.documentElement.scrollWidth") <= 380, path
        page.evaluate(checker)
        assert page.evaluate(VIOLATIONS) == [], (path, number % 2)
    assert said == []
    context.close()


def test_dark_and_light_are_different_papers(site, browser):
    address, cookies = site
    papers = set()
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        context.add_cookies(cookies)
        page = context.new_page()
        page.goto(address)
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        context.close()

    assert len(papers) == 2


def test_a_visitor_without_javascript_reads_searches_pins_and_deletes(site, browser, store):
    address, cookies = site
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies(cookies)
    page = context.new_page()
    page.goto(address)
    page.get_by_role("link", name="a session with a name").click()
    page.get_by_role("link", name=store[1]["log"]).click()
    page.get_by_role("link", name="Search").click()
    page.get_by_label("Find").fill("line 2971")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="Line 2,972").click()
    assert page.locator("li:target").inner_text() == "05:00:31 INFO line 2971"

    page.get_by_role("link", name="a session with a name").click()
    page.get_by_role("link", name=store[1]["gone"]).click()
    page.get_by_role("button", name="Pin", exact=True).click()
    assert "Pinned" in page.get_by_role("status").inner_text()
    page.get_by_role("button", name="Unpin").click()
    page.get_by_text("Delete…").click()
    page.get_by_role("button", name=f"Delete {store[1]['gone']}").click()
    assert "Deleted" in page.get_by_role("status").inner_text()
    keys = [found.key for found in open_store(str(store[0])).keys()]
    assert any(f"/{store[1]['gone']}~" in key and key.endswith(".deleted") for key in keys)
    context.close()


@pytest.fixture
def lines(site, browser, store) -> Iterator[tuple[Any, str, int]]:
    """The second page of the text of a record, its address, and the number of a line on it."""
    address, cookies = site
    context = browser.new_context(viewport={"width": 800, "height": 600})
    context.add_cookies(cookies)
    page = context.new_page()
    url = f"{address}{path_of('a session with a name of its own ' * 3)}/r/{store[1]['log']}?page=2"
    page.goto(url)
    yield page, url, page.evaluate("document.querySelector('ol.text').start") + 9
    context.close()


def marked(page: Any) -> list[int]:
    """Return the numbers of the lines that the page marks."""
    ids = page.evaluate("""() => [...document.querySelectorAll('ol.text li')]
      .filter(row => getComputedStyle(row).backgroundColor !== 'rgba(0, 0, 0, 0)').map(row => row.id)""")
    return [int(name.removeprefix("L")) for name in ids]


def test_lines_are_chosen_by_their_numbers_and_named_by_the_address(lines):
    page, url, line = lines

    def click(number: int, **options: Any) -> str:
        page.get_by_role("link", name=f"Line {number:,}", exact=True).click(**options)
        return str(page.url).removeprefix(url)

    assert click(line) == f"#L{line}"
    assert marked(page) == [line]
    assert click(line + 5, modifiers=["Shift"]) == f"#L{line}-L{line + 5}"
    assert marked(page) == [*range(line, line + 6)]
    assert click(line - 3, modifiers=["Shift"]) == f"#L{line - 3}-L{line}"
    assert marked(page) == [*range(line - 3, line + 1)]
    assert page.evaluate("getSelection().toString()") == ""


def test_lines_are_chosen_by_the_keyboard(lines):
    page, url, line = lines
    page.get_by_role("link", name=f"Line {line:,}", exact=True).focus()

    page.keyboard.press("Enter")
    page.keyboard.press("Shift+ArrowDown")
    page.wait_for_url(f"{url}#L{line}-L{line + 1}")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}#L{line + 2}")
    # One Tab leaves the numbers.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('ol.text')") is None


def test_an_address_with_a_range_marks_it_and_shows_its_first_line(lines):
    page, url, line = lines
    page.goto("about:blank")

    page.goto(f"{url}#L{line + 90}-L{line + 80}")

    assert marked(page) == [*range(line + 80, line + 91)]
    assert 0 <= page.locator(f"#L{line + 80}").bounding_box()["y"] < 100
    for fragment, number in ((f"L{line}", 1), ("main", 0)):
        page.evaluate(f"location.hash = '{fragment}'")
        page.wait_for_function(f"document.querySelectorAll('[aria-current=true]').length === {number}")
        assert len(marked(page)) == number


def test_a_number_links_to_its_line_without_javascript(site, browser, lines):
    _, url, line = lines
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies(site[1])
    page = context.new_page()
    page.goto(url)

    page.get_by_role("link", name=f"Line {line:,}", exact=True).click()

    assert page.url == f"{url}#L{line}"
    assert page.locator("li:target").get_attribute("id") == f"L{line}"
    context.close()


def test_the_keyboard_reaches_the_content_first_and_shows_where_it_is(site, browser):
    address, cookies = site
    context = browser.new_context()
    context.add_cookies(cookies)
    page = context.new_page()
    page.goto(address)

    page.keyboard.press("Tab")

    focused = page.locator(":focus-visible")
    assert focused.get_attribute("href") == "#main"
    assert focused.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    assert focused.bounding_box()["y"] >= 0
    context.close()


@pytest.mark.slow  # test_web.py sends the same requests without a browser
def test_a_form_of_another_site_in_the_same_browser_changes_nothing(site, browser, store, tmp_path):
    address, cookies = site
    record = f"{path_of('a session with a name of its own ' * 3)}/r/{store[1]['json']}"
    evil = tmp_path / "evil.html"
    evil.write_text(f'<form method="post" action="{address}{record}/delete"><button>Win</button></form>')
    context = browser.new_context()
    context.add_cookies(cookies)
    page = context.new_page()
    page.goto(evil.as_uri())

    with page.expect_navigation() as navigation:
        page.get_by_role("button").click()

    assert navigation.value.status == 403
    assert page.goto(address + record).status == 200
    context.close()
