"""The built site in a headless Chromium, its pages opened as files: they are whole, and the search finds them.

`mkdocs build && pytest --site site tests/repo/test_site_in_browser.py` runs this; `.ci/run` does it with its own site.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, start_browser, what_lacks
from tests.support.cases import case

#: Pages of each kind: a picture, code, tables, signatures, code side by side. All of them would take too long.
PAGES = ("index", "tasks/signals", "formats", "reference/data", "coming-from")

#: What a reader types -> the page that comes first.
SEARCHES = {
    "h5ad": "tasks/single-cell",
    "sel": "tasks/selecting",
    "k-fold": "tasks/splits",
    "imbalance": "tasks/sampling",
    "oversampling": "tasks/sampling",
    "to_zarr": "tasks/weather",
    "xarray": "tasks/selecting",
    "NetCDF": "tasks/files",
    "resume": "tasks/resume",
    "shuffle": "tasks/shuffling",
    "balance": "tasks/sampling",
    "curriculum": "tasks/sampling",
    "stratified": "tasks/splits",
    "ragged": "tasks/tables",
    "packing": "tasks/tables",
    "bucketing": "tasks/tables",
    "patient": "tasks/splits",
    "class imbalance": "tasks/sampling",
    "cross-validation": "tasks/splits",
    "next-token": "tasks/tables",
    "random crop": "tasks/signals",
    "recordings": "tasks/signals",
}

#: Returns what a reader cannot see: broken pictures; a page that is wider than the window; blocks whose end is cut off;
#: with `whole`, blocks of code of up to 120 columns that have to be scrolled sideways.
_CLIPPED = """
const [whole] = arguments, found = [], name = (one) => one.tagName + ' ' + one.innerText.trim().slice(0, 60);
for (const one of document.images) if (!one.complete || !one.naturalWidth) found.push('broken ' + one.src);
if (document.documentElement.scrollWidth > innerWidth) found.push('the page is wider than the window');
for (const one of document.querySelectorAll('article pre code, article table, article pre, article h1, article h2')) {
  const scroller = one.closest('.md-typeset__scrollwrap') || one;
  if (!scroller.offsetParent) continue;
  const excess = scroller.scrollWidth - scroller.clientWidth;
  const scrolls = ['auto', 'scroll'].includes(getComputedStyle(scroller).overflowX);
  const edge = scroller.getBoundingClientRect().right;
  if (excess > 1 && !scrolls && one.tagName != 'PRE') found.push('cut off: ' + name(one));
  const columns = Math.max(...one.innerText.split('\\n').map((line) => line.length));
  if (excess > 1 && whole && one.tagName == 'CODE' && columns <= 120)
    found.push('wider than the page by ' + excess + ': ' + name(one));
  if (edge > innerWidth + 1) found.push('beyond the window: ' + name(one));
}
return found;
"""

#: Types a query, and returns the address of the first result once the page shows the results of this query.
_SEARCH = """
const [query] = arguments, field = document.querySelector('.md-search__input');
const toggle = document.querySelector('#__search'), shown = document.querySelector('.md-search-result__meta');
if (!toggle.checked) toggle.click();
field.value = 'zzz';
field.dispatchEvent(new Event('keyup'));
const until = async (holds) => { while (!holds()) await new Promise((next) => setTimeout(next, 20)); };
await until(() => shown.innerText.startsWith('No matching'));
field.value = query;
field.dispatchEvent(new Event('keyup'));
await until(() => document.querySelector('.md-search-result__item > a'));
return document.querySelector('.md-search-result__item > a').href;
"""


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Path:
    folder = request.config.getoption("--site")
    if folder is None:
        pytest.skip("needs a built site: mkdocs build && pytest --site site tests/repo/test_site_in_browser.py")
    return Path(folder)


@pytest.fixture(scope="module")
def browser(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert (site / "index.html").exists(), site
    lacking = what_lacks()
    if lacking:
        pytest.skip(lacking)
    with start_browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.mark.timeout(240)
def test_pages_are_whole_at_two_widths_and_without_a_complaint(browser: Browser, site: Path) -> None:
    for page in PAGES:
        with case(page):
            browser.resize(1400)
            browser.open(site / f"{page}.html")
            found = browser.run(_CLIPPED, True)
            browser.resize(500)
            assert (found, browser.run(_CLIPPED, False), browser.messages()) == ([], [], [])


@pytest.mark.timeout(240)
def test_the_search_finds_the_page_of_a_term_first(browser: Browser, site: Path) -> None:
    browser.resize(1400)
    browser.open(site / "index.html")
    found = {query: browser.run(_SEARCH, query) for query in SEARCHES}
    wanted = {query: (site / f"{page}.html").resolve().as_uri() for query, page in SEARCHES.items()}
    assert {query: address.partition("?")[0].partition("#")[0] for query, address in found.items()} == wanted
    assert browser.messages() == []
