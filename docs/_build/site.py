"""Hooks of mkdocs: pages link to files of the repository, and the built site holds copies of them.

In the repository a page links to `../../examples/my_method.py`, which works in an editor and on a code host. The site
ends at `docs/`, so each file that is linked outside of it is added to the site and the link is moved up one folder.
`CHANGELOG.md` and `CONTRIBUTING.md` become pages.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = ["CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"]
LINK = re.compile(r"(?<=\]\()(?!\w+://)([^)#\s]+)")


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
