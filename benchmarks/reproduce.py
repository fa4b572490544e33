"""Run the papers' tables that need no data of yours, and keep their records with date and hardware.

    python benchmarks/reproduce.py small          # two CPU cores, a quarter of an hour
    python benchmarks/reproduce.py gpu            # one H200, 25 minutes
    python benchmarks/reproduce.py gpu --only pdbo

Each command is one of `coterie reproduce`; the records it writes go to benchmarks/results, from where
`python docs/_build/papers.py` makes docs/results/papers.md. A command that fails (for want of data, say) is named at
the end, and the others go on; rows of one table that several commands run are put together. After the time given none
is begun. On a GPU several run at once: while one of them compiles, which takes the host alone, another one trains.
With NVIDIA's MPS (`nvidia-cuda-mps-control -d` before) their kernels overlap, too: two rows of texts take 0.86 times as
long as one after the other.
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from coterie.reproduce.record import merged

RESULTS = Path(os.environ.get("COTERIE_BENCHMARKS", Path(__file__).parent / "results"))

# As many rows and rounds of SCooL's table as there is time for; all of them run on digits.
ROWS = "--methods local,ditto,fomo,meta-l2c,scool-sbm,scool-attention --rounds 50 --seeds 1"
MORE = "--methods fedavg,dada,pfedgraph,scool-mmsbm --rounds 50 --seeds 1"
# Three of the paper's eleven inner problems (a fourth one diverges), 1,200 steps of sixty LSTMs each.
TEXT = "--dataset shakespeare --seeds 1 --only printed --precision bfloat16"

COMMANDS = {
    "small": (
        "clusters --study table1",
        "clusters --study donors",
        "component --part codecs --data covtype-binary --codecs none,draft,fused,fused-k-ef",
        "scool --dataset digits --setting noniid --seeds 3",
        "scool --dataset digits --setting sbm --seeds 3",
        "pdbo --dataset digits --seeds 3",
        "spdb --dataset digits --seeds 3 --rounds 2000",
    ),
    "gpu": (  # the longest first
        f"pdbo {TEXT} --methods pdbo-mtl --rounds 3",
        f"pdbo {TEXT} --methods pdbo-mtl-local --rounds 3",
        f"scool --dataset fashion-mnist --setting noniid {ROWS}",
        f"scool --dataset fashion-mnist --setting sbm {ROWS}",
        f"pdbo {TEXT} --methods sgp,local --rounds 6",
        f"scool --dataset fashion-mnist --setting noniid {MORE}",
        f"scool --dataset fashion-mnist --setting sbm {MORE}",
        "spdb --dataset mnist --seeds 2",
    ),
}
MINUTES = {"small": 20, "gpu": 25}
AT_ONCE = {"small": 1, "gpu": 4}


def run(words: list[str], folder: Path, device: str) -> tuple[list[Path], str]:
    """Run one command; return the records it wrote, or the last line it printed if it failed."""
    command = [sys.executable, "-m", "coterie", "reproduce", *words, "--out", str(folder)]
    if words[0] not in ("clusters", "component"):  # these choose their device themselves
        command += ["--device", device]
    # JAX would take three quarters of a GPU's memory for the first of several processes.
    own = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=own)
    (folder.parent / f"{folder.name}.log").write_text(done.stdout)
    lines = [each for each in done.stdout.splitlines() if each.strip()]
    return sorted(folder.glob("reproduce*.json")), "" if done.returncode == 0 else (lines or ["no output"])[-1]


def keep(record: dict[str, Any], seconds: float) -> Path:
    """Write a record to the results, with the date and what it took."""
    sys.path.insert(0, str(Path(__file__).parent))
    import common

    today = datetime.date.today().isoformat()
    title = "-".join("".join(c if c.isalnum() else " " for c in record["title"].lower()).split())
    about = {"benchmark": f"reproduce-{title}", "date": today, "hardware": common.hardware(record["device"] or "CPU")}
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{today}-reproduce-{title}.json"
    whole = about | record | {"seconds": round(seconds)}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Run a list of commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=COMMANDS)
    parser.add_argument("--only", choices=sorted({text.split()[0] for texts in COMMANDS.values() for text in texts}))
    parser.add_argument("--minutes", type=float, help="begin no command after so many minutes")
    parser.add_argument("--out", type=Path, help="keep the runs in this folder; a second call does what is missing")
    parser.add_argument("--at-once", type=int, help="commands that run at the same time")
    asked = parser.parse_args()
    out = asked.out or Path(tempfile.mkdtemp(prefix="reproduce-"))
    out.mkdir(parents=True, exist_ok=True)
    device, started = "gpu" if asked.which == "gpu" else "cpu", time.perf_counter()
    records: dict[str, tuple[dict[str, Any], float]] = {}  # by title, with the seconds of its commands
    writing = Lock()

    def one(number: int, text: str) -> str:
        """Run a command and keep its records; return why it has none."""
        began = time.perf_counter()
        if began - started > 60 * (asked.minutes or MINUTES[asked.which]):
            return "not begun: out of time"
        files, error = run(shlex.split(text), out / f"{number}-{text.split()[0]}", device)
        took = time.perf_counter() - began
        for file in [] if error else files:
            with writing:
                record, seconds = json.loads(file.read_text(encoding="utf-8")), took
                if record["title"] in records:
                    record = merged([records[record["title"]][0], record])
                    seconds += records[record["title"]][1]
                records[record["title"]] = record, seconds
                print(f"{took:.0f} s: {text}: {keep(record, seconds)}", flush=True)
        return error or ("" if files else "it wrote no record")

    texts = [text for text in COMMANDS[asked.which] if asked.only in (None, text.split()[0])]
    with ThreadPoolExecutor(asked.at_once or AT_ONCE[asked.which]) as pool:
        failed = [(text, why) for text, why in zip(texts, pool.map(one, range(len(texts)), texts), strict=True) if why]
    for text, why in failed:
        print(f"failed: {text}: {why}")
    print(f"{time.perf_counter() - started:.0f} s in all; runs and logs are in {out}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
