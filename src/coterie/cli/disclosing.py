"""`coterie disclose`: the page that says what leaves each site."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import TrustCode
from coterie.cli.terminal import say
from coterie.errors import CoterieError

__all__ = ["disclose"]


def disclose(
    federation: Annotated[Path, typer.Argument(help="The federation, a TOML file.")],
    out: Annotated[Path, typer.Option(help="The page to write, .html or .md.")] = Path("disclose.html"),
    trust_code: TrustCode = False,
) -> None:
    """Write what leaves each site, for exactly this federation: every message, its receivers, bytes, and known leaks.

    Nothing is trained and nothing is sent; the same file gives the same page.
    """
    from coterie.sites.disclose import disclosure, markdown, title
    from coterie.sites.federation import FederationFile
    from coterie.storage.durable import durable_write

    if out.suffix.lower() not in (".html", ".md"):
        raise CoterieError(f"--out {out} must end in .html or .md")
    file = FederationFile.read(federation, trust_code)
    heading, sections = title(file), disclosure(file)
    if out.suffix.lower() == ".md":
        text = markdown(heading, sections)
    else:
        from coterie.pages.disclosure import disclosure_page

        text = disclosure_page(heading, sections)
    durable_write(out, text.encode())
    say(f"written: {out}, for the configuration with the digest {file.hash}")
