"""A process that meets the others and waits for a text that nobody sends: `meeting.py HOST:PORT PROCESSES PROCESS`.

With the word `abort` at the end it aborts when it is sent SIGUSR1, as C++ code does.
"""

import os
import signal
import sys

from coterie.experiment.interruption import termination
from coterie.processes.address import Address
from coterie.processes.meeting import join, told


def main(coordinator, processes, process, *words):
    if "abort" in words:
        signal.signal(signal.SIGUSR1, lambda number, frame: os.abort())
    with termination(), told():
        group = join(Address(coordinator, int(processes), int(process)), {"version": "1"})
        print("met", flush=True)
        group._wait_for("coterie/never")


if __name__ == "__main__":
    main(*sys.argv[1:])
