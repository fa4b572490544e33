"""Every reader of files or messages that may come from somebody else, with whole inputs to damage."""

import base64
import functools
import hashlib
import importlib.util
import io
import json
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import coterie
from coterie import codecs
from coterie.codecs import frame
from coterie.codecs.base import CHECKSUM
from coterie.comparison.comparison import Comparison
from coterie.comparison.config import ComparisonConfig
from coterie.comparison.sweeps.plan import SweepConfig
from coterie.comparison.sweeps.result import Sweep
from coterie.data.files import Npz
from coterie.data.libsvm import Libsvm
from coterie.data.tables.source import Table, from_frames
from coterie.experiment import snapshot
from coterie.experiment.config import Experiment
from coterie.experiment.folder import RunFolder
from coterie.experiment.machine import read_machine
from coterie.experiment.result import Result
from coterie.graphs.directed import TimeVarying
from coterie.graphs.graph import Graph
from coterie.graphs.topologies import Edges
from coterie.pages import write_report
from coterie.pages.sweep import render_sweep
from coterie.peers.faults import Faults
from coterie.peers.line import Delivery
from coterie.registry import names_from
from coterie.sites.cards import Card
from coterie.sites.certificates import wrong_certificate
from coterie.sites.contract import Contract
from coterie.sites.deliveries import DeliveryLog, read_log
from coterie.sites.federation import FederationFile
from coterie.sites.keys import throwaway
from coterie.sites.meeting import Meeting
from coterie.sites.pem import TlsFiles
from coterie.sites.site import SiteFile
from coterie.storage.arrays import npz_bytes
from coterie.storage.toml import read_toml
from support.fuzzing import Reader
from support.switchboard import Switchboard

PARQUET = importlib.util.find_spec("pyarrow") is not None  # an optional dependency
COUNT = 24  # numbers in a message
BLOCK = struct.Struct("<4sQQI")  # before a record of a file of records: letters, number, length, checksum
DIGEST = re.compile(rb'"coterie\.sha256":"([0-9a-f]{64})"')
EXPERIMENT = b"""format = 1
[data]
name = "table"
path = "visits.csv"
target = "cost"
client = "site"
[model]
name = "mlp"
hidden = [8, 4]
[graph]
name = "ring"
[codec]
name = "qsgd"
bits = 4
[method]
name = "gossip-sgd"
lr = 0.05
batch_size = 16
[run]
rounds = 4
seed = 3
evaluate_every = 2
"""
FAULTS = b"""seed = 1
[drop]
rate = 0.2
[[partition]]
groups = [["a"], ["b", "c"]]
rounds = [2, 3]
[[poison]]
members = ["a"]
kind = "scale"
"""
COMPARISON = EXPERIMENT.replace(b"[method]\n", b'[compare]\nmethods = ["local", "ditto"]\nseeds = 2\n[method]\n') + (
    b"[methods.ditto]\ntie = 0.5\n"
)

SWEEP = (
    EXPERIMENT
    + b"""[sweep]
method.lr = { from = 0.01, to = 1.0, steps = 3, scale = "log" }
seed = [0, 1]
[[sweep.together]]
method.batch_size = [5, 10]
model.name = ["linear", "mlp"]
"""
)
FIGURES = {
    "validation": 0.5,
    "validation_loss": 1.5,
    "test": 0.25,
    "rounds": 9,
    "bytes_per_client": 4e3,
    "seconds": 2.5,
}
SWEPT = {
    "format": 1,
    "metric": "rmse",
    "command": "coterie sweep x.toml",
    "keys": ["method.lr", "model.name"],
    "best": 1,
    "rows": [
        {"candidate": i, "seed": 0, "settings": {"method.lr": 0.1 * i, "model.name": "mlp"}, "diverged": False}
        | {"note": ""}
        | FIGURES
        for i in (1, 2)
    ],
}
FAILED = {"candidate": 3, "seed": 0, "diverged": True, "note": "diverged"} | dict.fromkeys(FIGURES)
SWEPT["rows"].append(FAILED | {"settings": {"method.lr": 9.5, "model.name": "mlp"}})

FEDERATION = b"""format = 1
[federation]
name = "compass"
hub = "north"
deadline = 30.5
seeds = ["north"]
[[members]]
name = "north"
address = "north.example.org:7447"
group = 0
[[members]]
name = "south"
address = "[::1]:7448"
reachable = false
group = 1
[data]
name = "digits"
[method]
name = "gossip-sgd"
lr = 0.05
[run]
rounds = 4
"""
SITE = b"""format = 1
[site]
name = "north"
listen = "0.0.0.0:7447"
out = "runs/north"
[tls]
key = "north.key"
certificate = "north.crt"
ca = "ca.crt"
[data]
path = "visits.csv"
sep = ";"
header = 1
[limits]
methods = ["gossip-sgd"]
receivers = ["south"]
rounds = 10
training_rows = 5
"""


def table_frame() -> pd.DataFrame:
    """Return a small table with numbers, words, dates, missing values and three sites."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"site": [f"0{i % 3}" for i in range(48)], "age": random.integers(20, 80, 48)})
    frame["ward"] = ["ab", "c d", "é"] * 16
    frame["since"] = pd.date_range("2024-01-01", periods=48).astype(str)
    frame["dose"] = random.normal(size=48).round(3)
    frame.loc[5, "dose"] = np.nan
    frame["cost"] = (frame["age"] * 1.5 + random.normal(size=48)).round(2)
    return frame


def _bytes_of(write: Callable[[io.BytesIO], Any]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def _from_file(name: str, load: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    """Return a reader of a single file."""

    def read(data: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(data)
        load(path)

    return read


def _read_sweep(path: Path) -> None:
    """Read the folder of a sweep and write its page."""
    swept = Sweep.read(path.parent)
    swept.to_frame()
    render_sweep(swept, "")


def _untrusted(parse: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    """Return a reader of somebody else's experiment, whose code may not be run."""

    def load(path: Path) -> None:
        with names_from(path):
            parse(read_toml(path))

    return load


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    return _bytes_of(lambda stream: np.savez(stream, **arrays))


def _with_member(arrays: dict[str, np.ndarray], name: str) -> Callable[[bytes], bytes]:
    """Return a function that puts damaged bytes in the place of one array, in an archive that is whole."""

    def wrap(data: bytes) -> bytes:
        def write(stream: io.BytesIO) -> None:
            with zipfile.ZipFile(stream, "w") as archive:
                for member, array in arrays.items():
                    whole = _bytes_of(lambda stream, array=array: np.save(stream, array))
                    archive.writestr(f"{member}.npy", data if member == name else whole)

        return _bytes_of(write)

    return wrap


def _last_block(data: bytes) -> tuple[bytes, bytes]:
    """Divide a file of records into what comes before the content of the last one, and that content."""
    start = 0
    while True:
        _, _, length, _ = BLOCK.unpack_from(data, start)
        content = start + BLOCK.size
        if content + length == len(data):
            return data[:content], data[content:]
        start = content + length


def _in_block(head: bytes | None, wrap: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a function that makes damaged bytes the last record of a file of records, with the right checksum."""
    if head is None:
        return wrap

    def record(data: bytes) -> bytes:
        content = wrap(data)
        magic, number, *_ = BLOCK.unpack(head[-BLOCK.size :])
        checksum = zlib.crc32(content, zlib.crc32(struct.pack("<QQ", number, len(content))))
        return head[: -BLOCK.size] + BLOCK.pack(magic, number, len(content), checksum) + content

    return record


def _npy(array: np.ndarray) -> bytes:
    return _bytes_of(lambda stream: np.save(stream, array))


def _signed(data: bytes) -> bytes:
    """Return a checkpoint with the digest that its damaged bytes have."""
    place = DIGEST.search(data)
    if place is None:
        return data
    zeros = data[: place.start(1)] + b"0" * 64 + data[place.end(1) :]
    return data[: place.start(1)] + hashlib.sha256(zeros).hexdigest().encode() + data[place.end(1) :]


def _deliveries() -> bytes:
    """Return the log of a site that ran a round and started again."""
    with tempfile.TemporaryDirectory() as folder:
        log = DeliveryLog(folder, [1], hub=True)
        heard = [Delivery(1, edges=np.array([[True, False]])), Delivery(1, up=np.ones(4, bool))]
        log.round(1, [*heard, Delivery(1, down=np.array([True]))])
        log.restored(1)
        return (Path(folder) / "deliveries.blocks").read_bytes()


def data_readers() -> list[Reader]:
    """Return the readers of experiments, tables, arrays and graphs."""
    table = table_frame()
    arrays = {"x": np.arange(60.0).reshape(20, 3), "y": np.arange(20) % 2, "client": np.arange(20) // 5}
    csv = table.to_csv(index=False).encode()
    load_table = lambda path: Table(path=str(path), target="cost", client="site").load()  # noqa: E731
    load_npz = lambda path: Npz(path=str(path)).load()  # noqa: E731
    log = lambda path: read_log(path.parent, 4)  # noqa: E731
    edges = lambda path: Edges(path=str(path)).build(4)  # noqa: E731
    over_time = lambda path: TimeVarying(path=str(path)).build(4)  # noqa: E731
    schedule = np.stack([np.eye(4)[::-1], np.roll(np.eye(4), 1, 0)])
    libsvm = b"".join(b"%d qid:%d 1:%g 3:%g\n" % (i % 2, i // 5, i / 7, i) for i in range(20))
    experiment = _untrusted(Experiment.from_dict)
    comparison = _untrusted(ComparisonConfig.from_dict)
    graphml = (
        b'<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">'
        b'<node id="0"/><node id="1"/><node id="2"/><node id="3"/><edge source="0" target="1"/></graph></graphml>'
    )
    return [
        Reader("experiment.toml", (EXPERIMENT,), _from_file("e.toml", experiment)),
        Reader("comparison.toml", (COMPARISON,), _from_file("c.toml", comparison)),
        Reader("sweep.toml", (SWEEP,), _from_file("s.toml", _untrusted(SweepConfig.from_dict))),
        Reader("sweep.json", (json.dumps(SWEPT).encode(),), _from_file("sweep.json", _read_sweep)),
        Reader("faults.toml", (FAULTS,), _from_file("faults.toml", Faults.read)),
        Reader("deliveries.blocks", (_deliveries(),), _from_file("deliveries.blocks", log)),
        Reader("csv", (csv, csv.replace(b",", b";")), _from_file("t.csv", load_table)),
        *([Reader("parquet", (_bytes_of(table.to_parquet),), _from_file("t.parquet", load_table))] if PARQUET else []),
        Reader("npz", (_npz(arrays),), _from_file("a.npz", load_npz)),
        *(
            Reader(f"npz, array {name}", (_npy(array),), _from_file("a.npz", load_npz), _with_member(arrays, name))
            for name, array in arrays.items()
        ),
        Reader("libsvm", (libsvm,), _from_file("t.libsvm", lambda path: Libsvm(path=str(path)).load())),
        Reader("graph, edge list", (b"0 1\n1 2\n# x\n2,3\n",), _from_file("g.txt", edges)),
        Reader("graph, GraphML", (graphml,), _from_file("g.graphml", edges)),
        Reader("graph, npy", (_npy(np.eye(4)[::-1]),), _from_file("g.npy", edges)),
        Reader("graph, npy over time", (_npy(schedule),), _from_file("g.npy", over_time)),
        Reader("graph, npz over time", (_npz({"links": schedule}),), _from_file("g.npz", over_time)),
    ]


def site_readers() -> list[Reader]:
    """Return the readers of a federation's files; keys and certificates where `cryptography` is installed."""
    settings = Table(path="unread", target="cost", client="site")
    contract = Contract.of(from_frames(table_frame(), settings))
    readers = [
        Reader("federation.toml", (FEDERATION,), _from_file("f.toml", FederationFile.read)),
        Reader("site.toml", (SITE,), _from_file("s.toml", SiteFile.read)),
        Reader("columns.json", (contract.to_json().encode(),), _from_file("columns.json", Contract.read)),
    ]
    if importlib.util.find_spec("cryptography") is None:
        return readers
    with tempfile.TemporaryDirectory() as folder:
        files = throwaway(Path(folder), ["north"])["north"]
        whole = {name: Path(getattr(files, name)).read_bytes() for name in ("key", "certificate", "ca")}

    def check(changed: str) -> Callable[[bytes, Path], Any]:
        def read(data: bytes, folder: Path) -> None:
            for name, content in (whole | {changed: data}).items():
                (folder / name).write_bytes(content)
                (folder / name).chmod(0o600)
            paths = {name: str(folder / name) for name in whole}
            wrong_certificate(TlsFiles(**paths), "north", ["north"], "127.0.0.1")

        return read

    for name, content in whole.items():
        label, der = _pem_parts(content)
        readers.append(Reader(f"{name}, PEM", (content,), check(name)))
        readers.append(Reader(f"{name}, DER", (der,), check(name), functools.partial(_as_pem, label)))
    return readers


def _pem_parts(content: bytes) -> tuple[str, bytes]:
    """Return what a PEM file says it holds, and its bytes."""
    first, *lines, _ = content.decode().strip().splitlines()
    return first.strip("-").removeprefix("BEGIN "), base64.b64decode("".join(lines))


def _as_pem(label: str, der: bytes) -> bytes:
    """Return bytes as a PEM file that is whole, so that damage reaches what is inside."""
    return f"-----BEGIN {label}-----\n".encode() + base64.encodebytes(der) + f"-----END {label}-----\n".encode()


def member_readers() -> list[Reader]:
    """Return the readers of what members say about themselves: their card, their configuration, their graph."""
    names, ring = ("north", "east", "south"), Graph.from_edges([0, 1, 2], [1, 2, 0], 3)
    versions = dict.fromkeys(("hash", "contract", "coterie", "jax", "python", "processor"), "1")
    mine = Card(**versions, session=1, run=5, round=3, started=True)
    card = mine._replace(round=7, first=2, began={"north": 1}, given_up={"north": 6}, lacks=["south"], ready=True)

    def meeting(data: bytes) -> Meeting:
        board = Switchboard()
        board.end("east").answer("hello", lambda *_: data)
        board.answers["east"] |= {"configuration": lambda *_: data}
        configuration = {"run": {"rounds": 3}}
        return Meeting(board.end("north"), "north", names, mine, configuration=configuration, patience=-1)

    def greet(data: bytes, _: Path) -> None:
        north = meeting(data)
        assert north.current(3, late=False) in range(2**63 + 1)
        north.start(0, 2)

    def compare(data: bytes, _: Path) -> None:
        north = meeting(data)
        north.cards["east"] = card._replace(hash="2")
        north._keys()

    table = npz_bytes({"neighbours": ring.neighbours, "present": ring.present})
    return [
        Reader("card of a member", (card.encode(), card._replace(started=False).encode()), greet),
        Reader("configuration of a member", (b'{"run": {"rounds": 4}, "members": [{"name": "north"}]}',), compare),
        Reader("graph of a member", (table,), lambda data, _: meeting(data).stages._table(data)),
    ]


def message_readers() -> list[Reader]:
    """Return the readers of frames and of every codec."""
    numbers = np.random.default_rng(0).normal(size=COUNT).astype(np.float32)
    layout = [numbers, np.arange(3, dtype=np.int32)]
    whole = frame.encode(frame.Header(1, 2, 3, 4, 5, 6), layout)
    readers = [
        Reader("frame", (whole,), lambda data, _: frame.decode(data, layout)),
        Reader("frame, last array coded", (whole,), lambda data, _: frame.decode(data, layout, coded=True)),
        *member_readers(),
    ]
    sparse = np.where(np.arange(COUNT) % 5 == 0, numbers, 0).astype(np.float32)
    for codec in (codecs.Raw(), codecs.Half(), codecs.QSGD(bits=3), codecs.TopK(), codecs.Fused()):
        seeds = tuple(codec.encode(x)[:-CHECKSUM] for x in (numbers, sparse, np.round(numbers)))

        def sign(content: bytes, codec: Any = codec) -> bytes:
            checksum = codec._checksum(content, COUNT, np.dtype(np.float32))
            return content + checksum.to_bytes(CHECKSUM, "little")

        def decode(data: bytes, _: Path, codec: Any = codec) -> None:
            codec.decode(data, COUNT, np.float32)

        readers.append(Reader(f"codec {codec.name}", seeds, decode, sign))
    return readers


def trained(folder: Path) -> Path:
    """Train a comparison whose folder has every kind of file; returns the folder."""
    (folder / "visits.csv").write_bytes(table_frame().to_csv(index=False).encode())
    federation = coterie.load("table", path=str(folder / "visits.csv"), target="cost", client="site")
    methods = [("gossip", {"name": "gossip-sgd"})]
    options = {"model": "linear", "graph": "ring", "rounds": 2, "evaluate_every": 1, "checkpoint_every": 1}
    options |= {"out": folder / "comparison", "device": "cpu", "progress": False, "tune": False, "splits": 1}
    coterie.compare(federation, methods, **options)
    return folder / "comparison"


def folder_readers(comparison: Path) -> list[Reader]:
    """Return a reader for each kind of file in the folder of a comparison and of its run."""
    files = {str(path.relative_to(comparison)): path.read_bytes() for path in comparison.rglob("*") if path.is_file()}
    run = next(name for name in files if name.endswith("config.toml")).removesuffix("config.toml")
    chosen: dict[str, str] = {}
    for name in sorted(files):
        if not name.endswith((".html", "lock")):
            chosen[re.sub(r"[0-9]{5,8}(-[0-9a-z]+)?", "N", name.removeprefix(run))] = name  # one of each kind
    readers = []
    for kind, name in chosen.items():
        read = _of_folder(files, name, run)
        if "checkpoints" in name:
            load = _of_folder(files, name, run, lambda _, run, choice: snapshot.load(run))
            readers.append(Reader("checkpoint", (files[name],), load, weight=0.5))
            readers.append(Reader("checkpoint, signed", (files[name],), load, _signed, weight=0.5))
        readers.append(Reader(f"folder, {kind}", (files[name],), read, weight=0.1))
        if name.endswith((".npz", ".blocks")):
            head, content = _last_block(files[name]) if name.endswith(".blocks") else (None, files[name])
            with np.load(io.BytesIO(content)) as archive:
                arrays = dict(archive)
            for member in arrays:
                wrap = _in_block(head, _with_member(arrays, member))
                readers.append(Reader(f"folder, {kind}, {member}", (_npy(arrays[member]),), read, wrap, 0.05))
    return readers


def _of_folder(
    files: dict[str, bytes], name: str, run: str, look: Callable[[Path, Path, int], Any] | None = None
) -> Callable[[bytes, Path], Any]:
    """Return a reader of a folder in which one file is damaged: as a result, to predict, to report, to resume."""
    look = look or _read_folder

    def read(data: bytes, folder: Path) -> None:
        place = folder / "comparison"
        whole = place / ".whole"
        if not whole.exists():
            for each, content in files.items():
                (place / each).parent.mkdir(parents=True, exist_ok=True)
                (place / each).write_bytes(content)
            whole.touch()
        (place / name).write_bytes(data)
        try:
            look(place, place / run, hashlib.sha256(data).digest()[0])
        finally:
            (place / name).write_bytes(files[name])

    return read


def _read_folder(comparison: Path, run: Path, choice: int) -> None:
    """Read a folder in one of the ways there are; `choice` says which, from 0 to 255."""
    if choice < 100:
        result = Result.read(run)
        result.summary()
        result.ledger.totals()
        result.all_scores()
    elif choice < 160:
        read_machine(run)
        snapshot.load(run)
    elif choice < 200:
        copy = run.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        try:
            RunFolder(copy).cut(1)
        finally:
            shutil.rmtree(copy)
    elif choice < 235:
        opened = coterie.open(run)
        if choice == 200:  # it compiles a program
            opened.predict(table_frame().iloc[:3])
    elif choice < 253:
        Comparison.read([comparison]).leaderboard()
    else:
        write_report(Comparison.read([comparison]), comparison / "report.html")


def every_reader(comparison: Path | None) -> list[Reader]:
    """Return all readers; without a trained comparison, those that need none."""
    return [
        *data_readers(),
        *site_readers(),
        *message_readers(),
        *([] if comparison is None else folder_readers(comparison)),
    ]
