"""Hooks of mkdocs: documents outside docs/ become pages, and links between documents work on the website.

Documents link to each other as files of the repository. On the website a link to a page goes to that page,
other files (pictures, scripts, data) are copied, and a link to a folder is plain text.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

PAGES = {
    "README.md": "index.md",
    "RESULTS.md": "RESULTS.md",
    "RESULTS-tables.md": "RESULTS-tables.md",
    "REPRODUCTION.md": "REPRODUCTION.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "speed/README.md": "speed.md",
    "figures/README.md": "figures.md",
}
"""Documents outside docs/, and their names on the site."""
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the documents outside docs/, and the files that any document links to."""
    root = Path(config.config_file_path).parent
    for name, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(root / name)))
    for page in list(files.documentation_pages()):
        markdown = Path(page.abs_src_path).read_text(encoding="utf-8")
        for target in _linked_files(root, _name_of(page.src_uri), markdown):
            uri = _uri_of(target)
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(root / target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links to files of the repository."""
    root = Path(config.config_file_path).parent
    name = _name_of(page.file.src_uri)

    def rewrite(link: re.Match[str]) -> str:
        target = _resolve(name, link["target"])
        if (root / target).is_dir():
            return link["text"]
        if not (root / target).is_file():
            return link[0]
        uri = relpath(_uri_of(target), PurePosixPath(page.file.src_uri).parent)
        return f"[{link['text']}]({uri}{link['anchor'] or ''})"

    return LINK.sub(rewrite, markdown)


def _linked_files(root: Path, name: str, markdown: str) -> Iterator[str]:
    for link in LINK.finditer(markdown):
        target = _resolve(name, link["target"])
        if (root / target).is_file():
            yield target


def _resolve(name: str, target: str) -> str:
    """Name in the repository of what a document links to."""
    return normpath(PurePosixPath(name).parent / target)


def _name_of(uri: str) -> str:
    """Name in the repository of a page of the site."""
    return next((name for name, page in PAGES.items() if page == uri), f"docs/{uri}")


def _uri_of(name: str) -> str:
    """Name on the site of a file of the repository."""
    return PAGES.get(name, name.removeprefix("docs/"))
