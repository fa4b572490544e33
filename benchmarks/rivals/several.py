"""Run several programs of this folder one after another in one process, which imports and starts a device once.

    python several.py torch_loop.py WORKLOAD ... + torch_vmap.py WORKLOAD ...

What one of them raises is printed; the others run.
"""

import runpy
import sys
import traceback
from pathlib import Path


def main() -> None:
    commands: list[list[str]] = [[]]
    for word in sys.argv[1:]:
        if word == "+":
            commands.append([])
        else:
            commands[-1].append(word)
    failed = False
    for command in commands:
        sys.argv = command
        try:
            runpy.run_path(str(Path(__file__).with_name(command[0])), run_name="__main__")
        except Exception:
            failed = True
            traceback.print_exc()
    sys.exit(failed)


if __name__ == "__main__":
    main()
