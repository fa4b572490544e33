"""Run one member of a federation: the same training, loop, files and report as a simulation, over a network.

    result = run_site(FederationFile.read("federation.toml"), SiteFile.read("site.toml"))

The folder is that of `coterie run` with the clients that live here; `members.json`, `deliveries.blocks` and
`sent.jsonl` say more about the network. A run that was stopped, or killed, goes on from its own checkpoint with the
round that the others are in.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.device import Device, choose_device
from coterie.experiment.folder import RunFolder
from coterie.experiment.job import Job
from coterie.experiment.loop import Progress
from coterie.experiment.members import Members
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from coterie.peers.access import NetworkSettings
from coterie.peers.faults import Faults
from coterie.peers.faulty import FaultyCarrier
from coterie.peers.injection import Injection
from coterie.peers.zenoh import ZenohCarrier
from coterie.sites.cards import Card
from coterie.sites.certificates import Validity
from coterie.sites.data import load_site
from coterie.sites.federation import FederationFile
from coterie.sites.meeting import Meeting
from coterie.sites.place import Network, Site
from coterie.sites.recording import RecordingCarrier
from coterie.sites.site import SiteFile

__all__ = ["network_settings", "read_faults", "run_site", "site_job"]

Opener = Callable[[int], Any]  # makes a carrier, given the size of the largest frame; used as a context manager


def run_site(
    federation: FederationFile,
    site: SiteFile,
    *,
    out: Path | None = None,
    device: Device | None = None,
    faults: Faults = Faults.NONE,
    carrier: Opener | None = None,
    pace: float = 0.0,
    alone: bool = False,
    progress: Progress | None = None,
    watch: Callable[[Site], None] | None = None,
) -> Result:
    """Take part in a federation until its last round.

    Args:
        federation: what all members run.
        site: which of them this is, its data and its keys.
        out: the folder of the run; default: the one that site.toml names.
        device: where to compute; default: one core.
        faults: what goes wrong on purpose (see `peers/faults.py`).
        carrier: makes what moves the frames; default: Eclipse Zenoh, as the two files say.
        pace: seconds from the start of a round to that of the next one, at least.
        alone: finish a run that has begun, if nobody else is there: the others have come to its end.
        progress: called as in `coterie.run`.
        watch: called once with this member's place, whose status then changes.

    Raises:
        CoterieError: the members do not run the same, nobody else came, or everybody has left.
    """
    _refuse(federation, site)
    device = device or choose_device("cpu", cores=1)
    folder = out or site.folder(federation)
    job = site_job(federation, site, faults)
    notify = progress or (lambda *_: None)
    me = federation.number(site.name)
    done = RunFolder(folder)
    before = done.members() if done.exists() else None
    members = Members(federation.names, (me,), 0 if before is None else before.run)
    card = Card.of_this_process(
        federation.hash,
        "" if federation.contract is None else federation.contract.digest,
        device.machine.processor,
    )

    def note(sentence: str) -> None:
        notify("note", 0, job.settings.rounds, {"note": sentence})

    with contextlib.ExitStack() as stack:

        def join(largest: int) -> Network:
            transport = (carrier or _zenoh(federation, site))(largest)
            meeting = Meeting(
                transport,
                site.name,
                federation.names,
                card,
                hub=federation.hub,
                configuration=federation.to_dict(),
                patience=federation.settings.start_deadline,
                deadline=federation.settings.deadline,
                alone=alone,
                linked=federation.linked(site.name),
                note=note,
            )
            stack.enter_context(transport)
            injected = _faulty(transport, job.injection(federation.names))
            recorded = RecordingCarrier(injected, federation.names, (me,), folder)
            return Network(transport, recorded, meeting)

        validity = Validity.of(site.tls) if federation.settings.tls and site.tls is not None else None
        if validity is not None and (warning := validity.warning()):
            note(warning)
        refuse = (lambda: None) if validity is None else validity.refuse
        place = Site(members, join, federation.hub is not None, folder, pace, job.settings.all_to_all, refuse)
        if watch is not None:
            watch(place)
        result = execute(job, out=folder, device=device, progress=progress, place=place)
        if hasattr(place, "meeting"):  # it has run, and was not only read
            place.meeting.leave()
        return result


def site_job(federation: FederationFile, site: SiteFile, faults: Faults = Faults.NONE) -> Job:
    """Load the site's data and make its job: the clients that live here, on the graph of all members."""
    experiment, here = load_site(federation, site)
    if faults:  # not of the shared file: every member of a trial is given the same ones
        experiment = dataclasses.replace(experiment, faults=faults)
    _refuse_experiment(experiment)
    return Job.of(experiment, here, clients=len(federation.members))


def network_settings(federation: FederationFile, site: SiteFile) -> NetworkSettings:
    """Return where this site listens, whom it calls, and by which keys it is known."""
    files = {} if site.tls is None else {name: Path(getattr(site.tls, name)) for name in ("ca", "certificate", "key")}
    return NetworkSettings(
        listen=site.address(federation),
        connect=federation.dials(site.name),
        deadline=federation.settings.deadline,
        start_deadline=max(federation.settings.deadline, min(300.0, federation.settings.start_deadline)),
        insecure=not federation.settings.tls,
        **(files if federation.settings.tls else {}),
    )


def _zenoh(federation: FederationFile, site: SiteFile) -> Opener:
    here = {name: [number] for number, name in enumerate(federation.names)}
    return lambda largest: ZenohCarrier(
        me=site.name,
        members=federation.names,
        here=here,
        hub=federation.hub,
        network=network_settings(federation, site),
        run=0,
        largest=largest,
    )


def read_faults(path: Path | None) -> Faults:
    """Read what goes wrong on purpose."""
    return Faults.NONE if path is None else Faults.read(path)


def _faulty(transport: Any, injection: Injection | None) -> Any:
    return transport if injection is None else FaultyCarrier(transport, injection)


def _refuse(federation: FederationFile, site: SiteFile) -> None:
    """Refuse what this site's own limits forbid."""
    wrong = site.wrong(federation)
    if wrong:
        raise CoterieError("; ".join(wrong))


def _refuse_experiment(experiment: Experiment) -> None:
    """Refuse settings for which everybody's data or scores would have to be in one place."""
    if hasattr(experiment.graph.spec, "build_from"):
        raise CoterieError(
            f"graph {experiment.graph.name} is made from everybody's data, which no member has; choose another graph, "
            "or write one to a file (coterie graph) and name that"
        )
    if experiment.world:
        raise CoterieError(
            "[world] is for a simulation (coterie run federation.toml); on a network members take part as they are"
        )
    if experiment.run.patience:
        raise CoterieError("run.patience needs everybody's validation scores; set it to 0 for a run on a network")
