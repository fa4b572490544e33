"""Hooks of mkdocs: pages link to files of the repository, and the built site holds copies of them.

In the repository a page links to `../../examples/my_method.py`, which works in an editor and on a code host. The site
ends at `docs/`, so each file that is linked outside of it is added to the site and the link is moved up one folder.
`CHANGELOG.md`, `CONTRIBUTING.md` and `SECURITY.md` become pages. Lists may follow a paragraph without an empty line, as
in docstrings.
"""

import logging
import re
from pathlib import Path, PurePosixPath
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"]
LINK = re.compile(r"(?<=\]\()(?!\w+://)([^)#\s]+)")
NAMED = re.compile(r"docs/([\w/-]+)\.md(#[\w-]+)?")  # a page, as a docstring names it
ITEM = re.compile(r"(- |\d+\. )")


class _Lists(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        """Put an empty line between a paragraph and the list that follows it."""
        spaced: list[str] = []
        in_list = False
        for line in lines:
            item = ITEM.match(line) is not None
            if item and not in_list and spaced and spaced[-1].strip():
                spaced.append("")
            in_list = item or (in_list and (not line.strip() or line.startswith(" ")))
            spaced.append(line)
        return spaced


class _ListsAfterParagraphs(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Run after fenced blocks have been taken out."""
        md.preprocessors.register(_Lists(md), "lists-after-paragraphs", 20)


def on_config(config: Any) -> Any:
    """Add the Markdown extension."""
    config.markdown_extensions.append(_ListsAfterParagraphs())
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the linked files outside of docs/."""
    outside = set(PAGES)
    for page in list(files.documentation_pages()):
        folder = (ROOT / "docs" / page.src_uri).parent
        for target in LINK.findall(page.content_string):
            path = (folder / target).resolve()
            if path.is_file() and not path.is_relative_to(ROOT / "docs"):
                outside.add(path.relative_to(ROOT).as_posix())
    for uri in sorted(outside - {"README.md"}):
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / uri)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links that leave docs/ point at the copies in the site."""
    here = PurePosixPath(page.file.src_uri)
    if here.name in PAGES:  # it lies above docs/ in the repository and beside it in the site
        return LINK.sub(lambda link: link.group(1).removeprefix("docs/"), markdown)
    above = "../" * len(here.parts)
    return LINK.sub(lambda link: re.sub(rf"^{above}(?!\.\.)", above[3:], link.group(1)), markdown)


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Turn the pages that docstrings name into links."""

    def link(name: re.Match) -> str:
        if f"{name[1]}.md" not in files.src_uris:
            logging.getLogger("mkdocs").warning("%s: %s does not exist", page.file.src_uri, name[0])
        return f'<a href="../../{name[1]}.html{name[2] or ""}">{name[0]}</a>'

    return NAMED.sub(link, html) if page.file.src_uri.startswith("reference/api/") else html
