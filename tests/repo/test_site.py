"""The documents: the site has every page, decisions are listed, and what is named or linked exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import ROOT

SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere() -> None:
    def pages(nav: Any) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        return [page for one in (nav.values() if isinstance(nav, dict) else nav) for page in pages(one)]

    records = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {Path(page) for page in pages(SITE["nav"])} == written - records
    assert SITE["theme"]["font"] is False
    assert not any("://" in str(SITE.get(key, "")) for key in ("extra_css", "extra_javascript", "extra"))


def test_decisions_are_numbered_dated_and_listed() -> None:
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    records = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        text = path.read_text()
        title = re.match(rf"# {path.name[:4]}\. (.+)\n\nDate: (\d{{4}}-\d\d-\d\d)\n", text)
        assert title is not None, path.name
        assert f"| {path.name[:4]} | [{title[1]}]({path.name}) | {title[2]} |" in index
        assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == ["Context", "Decision", "Consequences"]


FOLDERS = (".ci", ".github", "benchmarks", "cpp", "dev", "docs", "examples", "src", "tests")
#: Files that a page lets its reader write, or that a benchmark writes.
INVENTED = {
    "train.py",
    "benchmarks/results/results.md",
    "benchmarks/results/costs.md",
    "gpu.md",
    "cores.md",
    "nvcomp.md",
}
#: How documents name files, by their path or the end of it: `cpp/plan/row_order.cc`, `order/order.py`, `test_order.py`.
_NAMED = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|cc|h|sh|c|md|pyi|toml|yml|txt))`")


def test_files_that_documents_name_exist() -> None:
    every = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    ends = {"/".join(path.parts[-n:]) for path in every for n in range(1, len(path.parts) + 1)}
    ends |= {path.name for path in ROOT.iterdir()}
    named = {
        f"{document.name}: {name}": name
        for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
        if document.name != "CHANGELOG.md"  # which names what there was
        for name in _NAMED.findall(document.read_text())
    }
    assert len(named) > 50
    assert [where for where, name in named.items() if name not in ends | INVENTED] == []


def test_links_between_documents_lead_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


#: How code and documents name a section of the design: docs/design/order.md, The epoch order. The heading is optional.
_OF_DESIGN = re.compile(r"docs/design(?:/([\w-]+))?\.md(?:, ([A-Z][^.,;:()\"]*))?")


def test_sections_of_the_design_that_anything_names_exist() -> None:
    headings = {
        page.stem: re.findall(r"^##+ (.+)$", page.read_text(), flags=re.MULTILINE)
        for page in (ROOT / "docs" / "design").glob("*.md")
    }
    assert len(headings) == 8
    named = [
        (path.relative_to(ROOT), page, " ".join(heading.split()))
        for path in (*(one for folder in FOLDERS for one in (ROOT / folder).rglob("*")), *ROOT.glob("*.md"))
        if path.suffix in {".py", ".h", ".cc", ".md"} and path.name != "CHANGELOG.md"
        for page, heading in _OF_DESIGN.findall(re.sub(r"\n(?://)? ?", " ", path.read_text()))
    ]
    assert len([heading for _, _, heading in named if heading]) >= 5
    assert [one for one in named if one[1] not in headings] == []
    assert [one for one in named if one[2] and one[2] not in headings[one[1]]] == []


def test_no_document_has_a_heading_twice_in_one_section() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        for section in re.split(r"^## ", text, flags=re.MULTILINE):
            below = re.findall(r"^###+ (.+)$", section, flags=re.MULTILINE)
            assert len(below) == len(set(below)), f"{document.name}: {below}"
        sections = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
        assert len(sections) == len(set(sections)), f"{document.name}: {sections}"
