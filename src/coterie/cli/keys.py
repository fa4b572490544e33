"""`coterie keys`: a certificate authority for the federation, and certificates for its members."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.terminal import say
from coterie.storage.commands import command

__all__ = ["keys"]

Folder = Annotated[Path, typer.Option(help="Where keys and certificates are.")]
Name = Annotated[str, typer.Argument(help="The member, as federation.toml names it.")]

keys = typer.Typer(
    name="keys",
    help="Certificates for real peers: an authority of your own, and short-lived certificates for the members.",
    epilog="Certificates of another authority work as well: coterie check federation.toml --site site.toml",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@keys.command()
def init(
    folder: Folder = Path("keys"),
    name: Annotated[str, typer.Option(help="What the authority is called.")] = "coterie federation",
    days: Annotated[int, typer.Option(min=1, max=36500, help="How long it is valid.")] = 730,
) -> None:
    """Make a certificate authority for a federation: ca.key, which signs, and ca.crt, which every member gets."""
    from coterie.sites.keys import Authority

    Authority.create(name, days).save(folder)
    say(f"written: {folder / 'ca.key'} (keep it to yourself) and {folder / 'ca.crt'} (for every member)")
    say(f"next: {command('keys', 'issue', 'NAME', '--host', 'HOST', '--folder', folder)}, for each member")


@keys.command()
def issue(
    name: Name,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A host's name or IP address that the member is reached at; repeatable."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=825, help="How long the certificate is valid.")] = 30,
    folder: Folder = Path("keys"),
    request: Annotated[
        Path | None, typer.Option(help="The request of a member that keeps its private key (coterie keys request).")
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the certificate: the same private key and, without --host, hosts.")
    ] = False,
) -> None:
    """Issue a certificate for a member: NAME.crt and, unless it sent a request, its private key NAME.key."""
    from coterie.sites.keys import Authority

    file = Authority.read(folder).issue_files(folder, name, host or [], days, request=request, renew=renew)
    say(f"written: {file}, valid for {days} days")
    if renew:
        say(f"send it to {name}")
    elif request is not None:
        say(f"send it and {folder / 'ca.crt'} to {name}")
    else:
        say(f"send {file}, {folder / f'{name}.key'} and {folder / 'ca.crt'} to {name} over a channel you trust")


@keys.command()
def request(name: Name, folder: Folder = Path("keys")) -> None:
    """Make a private key that stays here, and a request for its certificate, for whoever has the authority's key."""
    from coterie.sites.keys import request_certificate

    file = request_certificate(folder, name)
    say(f"written: {file}, for the authority, and {folder / f'{name}.key'}, which stays here")
    say(f"there: {command('keys', 'issue', name, '--request', file, '--host', 'HOST')}")


@keys.command()
def show(
    file: Annotated[Path, typer.Argument(help="Certificates in PEM format.")],
) -> None:
    """Show what the certificates in a file are: whose, for which hosts, of whom, and until when."""
    from coterie.sites.certificates import described

    for line in described(file):
        say(line)
