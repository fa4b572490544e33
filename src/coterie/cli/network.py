"""`coterie join` and `coterie peers`: a member of a federation at its site, and all of them on one machine."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import Json, Out, TrustCode
from coterie.cli.terminal import console_for, say
from coterie.errors import CoterieError
from coterie.storage.commands import command

__all__ = ["join", "peers"]

FederationToml = Annotated[Path, typer.Argument(metavar="FEDERATION", help="federation.toml, equal at every site.")]
Pace = Annotated[float, typer.Option("--pace", help="Seconds per round, at least: leave time to others.", min=0)]
FaultsToml = Annotated[Path | None, typer.Option("--faults", help="What goes wrong on purpose, a TOML file.")]


def join(
    federation: FederationToml,
    site: Annotated[Path, typer.Option("--site", help="This site's own file, site.toml.")],
    faults: FaultsToml = None,
    pace: Pace = 0.0,
    alone: Annotated[bool, typer.Option("--alone", help="Finish a run whose other members have ended.")] = False,
    out: Out = None,
    trust_code: TrustCode = False,
    attached: Annotated[bool, typer.Option("--attached", hidden=True)] = False,
    as_json: Json = False,
) -> None:
    """Take part in a federation: train this site's model together with the other members."""
    from coterie.sites.checking import check_federation
    from coterie.sites.federation import FederationFile
    from coterie.sites.handshake import greet_members
    from coterie.sites.site import SiteFile

    shared, own = FederationFile.read(federation, trust_code), SiteFile.read(site)
    folder = out or own.folder(shared)
    console = console_for(as_json)
    wrong = [] if attached else check_federation(shared, own).wrong  # `peers` has looked before it started this one
    if wrong:
        raise CoterieError("; ".join(wrong))
    greetings = greet_members(shared, own)
    refused = [greeting.sentence for greeting in greetings if greeting.state == "refused"]
    if refused and not any(greeting.state == "connected" for greeting in greetings):
        raise CoterieError("; ".join(refused))
    for greeting in greetings:
        console.print(greeting.sentence, markup=False, soft_wrap=True)
    from coterie.cli.members import MemberScreen
    from coterie.sites.running import read_faults, run_site

    back = f"left; come back with: {command('join', federation)} --site {site}"
    with _attached(attached), _ending(back), MemberScreen(console, shared, own.name, as_json) as screen:
        result = run_site(
            shared,
            own,
            out=folder,
            faults=read_faults(faults),
            pace=pace,
            alone=alone,
            progress=screen.update,
            watch=screen.watch,
        )
    if as_json:
        print(json.dumps({"event": "result", "folder": str(folder), **result.summary()}), flush=True)
        return
    console.print(f"run: {folder}", markup=False, soft_wrap=True)
    console.print(f"report: {command('report', folder)}", markup=False, soft_wrap=True)


def peers(
    federation: FederationToml,
    local: Annotated[bool, typer.Option("--local", help="Start all members as processes of this machine.")] = False,
    sites: Annotated[
        Path | None, typer.Option("--sites", help="The folder with NAME.toml of each member that has its own data.")
    ] = None,
    faults: FaultsToml = None,
    pace: Pace = 0.0,
    out: Out = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Start all members of a federation on this machine, with throw-away certificates: the way to try one."""
    if not local:
        raise CoterieError(
            "peers starts all members on this machine: add --local; at each site start one with coterie join"
        )
    from coterie.cli.members import FederationScreen
    from coterie.sites.federation import FederationFile
    from coterie.sites.local import LocalFederation

    shared = FederationFile.read(federation, trust_code)
    _refuse_for_all(shared, faults)
    folder = out or Path("runs") / f"{shared.settings.name}-peers"
    options = ["--pace", str(pace), *([] if faults is None else ["--faults", str(faults.absolute())])]
    console = console_for(as_json)
    options += ["--trust-code"] if trust_code else []
    members = LocalFederation(federation, folder, sites, options)
    failed: dict[str, str] = {}
    again = f"stopped all; continue with: {command('peers', federation)} --local --out {folder}"
    with _ending(again), members, FederationScreen(console, shared, as_json) as screen:
        members.start()
        for event in members.events():
            screen.update(event)
            if event.exit:
                failed[event.name] = members.why(event.name)
                screen.note(f"{event.name} has ended (exit status {event.exit}): {failed[event.name]}")
    folders = [members.folder(name) for name in members.names if name not in failed]
    _gathered(folders, folder, console, as_json, failed)
    if failed:
        raise CoterieError(f"{', '.join(failed)} did not come to the end; what they said is in {folder}/NAME.log")


def _refuse_for_all(shared: Any, faults: Path | None) -> None:
    """Say once, before anybody is started, what every member would refuse."""
    from coterie.peers.injection import Injection
    from coterie.sites.checking import check_federation
    from coterie.sites.running import read_faults

    Injection.of(read_faults(faults), shared.names, shared.experiment.codec.name != "none")
    wrong = check_federation(shared).wrong
    if wrong:
        raise CoterieError("; ".join(wrong))


def _gathered(folders: list[Path], out: Path, console: Any, as_json: bool, failed: dict[str, str]) -> None:
    """Say where everybody's run is."""
    if as_json:
        print(json.dumps({"event": "result", "folders": [str(path) for path in folders], "failed": failed}), flush=True)
        return
    for path in folders:
        console.print(f"run: {path}", markup=False, soft_wrap=True)
    if not failed:
        from coterie.cli.gathering import gather
        from coterie.experiment.folder import RunFolder

        together = RunFolder(out / "gathered")
        if together.complete:  # of the same run: it was only read now
            console.print(f"run: {together.path}", markup=False, soft_wrap=True)
        else:
            gather(folders, together.path, with_models=True)


@contextlib.contextmanager
def _ending(words: str) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, say how to go on, and end with the signal's exit status."""
    from coterie.experiment.interruption import Terminated, termination

    try:
        with termination():
            yield
    except KeyboardInterrupt as stop:
        with contextlib.suppress(OSError):
            say(words, to_errors=True)
        raise typer.Exit(128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)) from None


@contextlib.contextmanager
def _attached(wanted: bool) -> Iterator[None]:
    """Leave when the process that started this one is gone: its end of the standard input is then closed."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGINT)

    if wanted:
        threading.Thread(target=wait, daemon=True).start()
    yield
