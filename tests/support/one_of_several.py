"""One of the processes of a run on mapped files: says how much of each file it has had in memory.

    python one_of_several.py experiment.toml OUT COORDINATOR PROCESSES PROCESS

The last line is JSON: kilobytes of each mapped file that are in the memory of this process at the end, the fingerprint
of the data, and kilobytes of the process that are no file's.
"""

import json
import re
import sys
from pathlib import Path


def resident(ending=".npy"):
    """Kilobytes of each mapped file that this process has touched, by name."""
    found, name = {}, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.fullmatch(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)", line)
        if head:
            name = Path(head[1]).name
        elif line.startswith("Rss:") and name.endswith(ending):
            found[name] = found.get(name, 0) + int(line.split()[1])
    return found


def main(experiment, out, coordinator, processes, process):
    from coterie.experiment.config import Experiment
    from coterie.experiment.device import choose_device
    from coterie.experiment.job import Job
    from coterie.experiment.run import execute
    from coterie.experiment.several import loading, place_here
    from coterie.processes.address import Address
    from coterie.processes.meeting import told
    from coterie.storage.toml import read_toml

    with told():
        device = choose_device("cpu", address=Address(coordinator, int(processes), int(process)))
        job = Job.of(Experiment.from_dict(read_toml(experiment)), load=loading(device))
        job, place = place_here(job, device)
        execute(job, out=out, device=device, place=place)
        private = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        here = {"files": resident(), "digest": place.fingerprint(job.federation), "private": int(private[1])}
    print(json.dumps(here))


if __name__ == "__main__":
    main(*sys.argv[1:])
