"""One group of processes that takes part in one federation after another: over the same ports, with the same keys.

A process needs seconds to start and to import everything, so a row of many short federations starts its members once.
Each federation is a whole run at every site, as `coterie join` has it: files, meeting, mutual TLS, checkpoints.
"""

import multiprocessing
import time
from pathlib import Path

from coterie.sites.federation import FederationFile
from coterie.sites.keys import throwaway
from coterie.sites.running import read_faults, run_site
from coterie.sites.site import SiteFile
from coterie.storage.toml import dump_toml, read_toml
from support.members import free_ports

__all__ = ["Group"]

HOST = "127.0.0.1"


class Group:
    """Processes, one for each member; use it as a context manager.

    Args:
        folder: for keys and the files of the sites.
        names: the members of every federation.
        cores: that each of them computes with.
    """

    def __init__(self, folder, names, cores=1):
        self.folder, self.names = Path(folder), tuple(names)
        self._keys = throwaway(self.folder / "keys", self.names, [HOST])
        self._addresses = [f"{HOST}:{port}" for port in free_ports(len(self.names))]
        self._cores, self._pipes, self._processes = cores, [], []
        self._runs = 0

    def __enter__(self):
        context = multiprocessing.get_context("spawn")
        for _ in self.names:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._cores), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        return self

    def __exit__(self, kind, error, trace):
        self._end(kind is None)

    def run(self, path, out, faults=None, seconds=600.0, pace=None):
        """Let all members take part in a federation; returns their folders, and by name what went wrong.

        Args:
            path: federation.toml of these members; its addresses are replaced by those of the group.
            out: where each member gets the folder of its run.
            faults: a file with what goes wrong on purpose.
            seconds: after which a member that is not done counts as stuck, and the group starts anew.
            pace: seconds that a round of a member takes at least, by name: those are slower than the others.
        """
        self._runs += 1
        here = self.folder / f"{self._runs:04d}"
        here.mkdir()
        tables = read_toml(path)
        for row, address in zip(tables["members"], self._addresses, strict=True):
            row["address"] = address
        (here / "federation.toml").write_text(dump_toml(tables))
        folders = [Path(out) / name for name in self.names]
        for name, pipe, folder in zip(self.names, self._pipes, folders, strict=True):
            keys = self._keys[name]
            site = {"name": name, "out": str(folder.absolute())}
            tls = {"key": keys.key, "certificate": keys.certificate, "ca": keys.ca}
            (here / f"{name}.toml").write_text(dump_toml({"site": site, "tls": tls}))
            pipe.send((here / "federation.toml", here / f"{name}.toml", faults, (pace or {}).get(name, 0.0)))
        end, wrong = time.monotonic() + seconds, {}
        for name, pipe in zip(self.names, self._pipes, strict=True):
            try:
                said = pipe.recv() if pipe.poll(max(0.0, end - time.monotonic())) else "did not come to the end"
            except (EOFError, ConnectionError):
                said = "its process ended"
            if said is not None:
                wrong[name] = said
        if any(not process.is_alive() for process in self._processes) or time.monotonic() > end:
            self._end(False)
            self.__enter__()
        return folders, wrong

    def _end(self, gently):
        """End the processes: those that wait for an order, or all."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if gently and process.is_alive():
                pipe.send(None)
                process.join(20)
            if process.is_alive():
                process.kill()
                process.join(20)
            pipe.close()
        self._pipes, self._processes = [], []


def _serve(pipe, cores):
    """Take part in federations until there are no more."""
    from coterie.experiment.device import choose_device

    device = choose_device("cpu", cores=cores)
    while (order := pipe.recv()) is not None:
        federation, site, faults, pace = order
        try:
            run_site(
                FederationFile.read(federation, trust_code=True),
                SiteFile.read(site),
                device=device,
                faults=read_faults(faults),
                pace=pace,
            )
            pipe.send(None)
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
