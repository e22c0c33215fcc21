"""MkDocs hooks: pages from outside of docs/, a page of the API for each package, links."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

PAGES = {
    "README.md": "index.md",
    "RESULTS.md": "results.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "measurements.md",
    "docs/README.md": "index.md",
}
"""Files of the repository that are pages under another name."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)")
FENCE = re.compile(r"^(```.*?^```$)", re.M | re.S)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of the repository, the results and the pages of the API."""
    root = Path(config.config_file_path).parent
    extra = {page: root / source for source, page in PAGES.items() if source != "docs/README.md"}
    results = sorted((root / "results").glob("*.md")) + sorted((root / "results").glob("*.png"))
    extra |= {f"results/{path.name}": path for path in results}
    for name, path in extra.items():
        file = File.generated(config, name, abs_src_path=str(path))
        if name.startswith("results/"):
            file.inclusion = file.inclusion.NOT_IN_NAV
        files.append(file)
    for name, text in api_pages(root / "src"):
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def api_pages(source: Path) -> list[tuple[str, str]]:
    """The pages of the public names, by package."""
    packages = sorted(source.glob("celrec/**/__init__.pyi"))
    pages = [("testing", _page("celrec.testing", ["check_embedding"]))]
    for stub in packages:
        package = ".".join(stub.parent.relative_to(source).parts)
        names = re.findall(r"^from \S+ import \S+ as (\w+)$", stub.read_text(), re.M)
        if package == "celrec":
            pages.append(("celrec", _overview(stub.read_text())))
        else:
            pages.append((package.removeprefix("celrec."), _page(package, names)))
    return pages


def _page(package: str, names: list[str]) -> str:
    ordered = sorted(names, key=lambda name: (name.isupper() and len(name) > 4, name[0].islower()))
    members = "\n".join(f"        - {name}" for name in ordered)
    return (
        f"# {package}\n\n::: {package}\n    options:\n      show_root_heading: false\n"
        f"      show_root_toc_entry: false\n      members:\n{members}\n"
    )


def _overview(stub: str) -> str:
    lines = ["# celrec", "", "The names that `import celrec` has.", "", "| name | package |"]
    lines.append("|---|---|")
    for module, name in re.findall(r"^from (\S+) import \S+ as (\w+)$", stub, re.M):
        room = module.split(".")[1]
        page = f"{room}.md" if (room != "errors") else ""
        link = f"[`celrec.{room}`]({page})" if page else "`celrec.errors`"
        lines.append(
            f"| [`{name}`][celrec.{room}.{name}] | {link} |" if page else f"| `{name}` | {link} |"
        )
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between files of the repository as links between pages; doctests as sessions."""
    root = Path(config.config_file_path).parent
    if page.file.src_uri.startswith("api/"):
        return markdown
    source = next((s for s, target in PAGES.items() if target == page.file.src_uri), None)
    if source is None:
        inside = (root / page.file.src_uri).exists()  # results/
        source = page.file.src_uri if inside else f"docs/{page.file.src_uri}"

    def linked(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            return text  # a file that is not part of the site
        start = posixpath.dirname(page.file.src_uri) or "."
        return f"{picture}[{text}]({os.path.relpath(place, start)}{anchor or ''})"

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(linked, part) for part in parts[::2]]
    parts[1::2] = [part.replace("```python\n>>>", "```pycon\n>>>") for part in parts[1::2]]
    return "".join(parts)
