"""Tables and arrays that are damaged, hostile or not what they look like: refused in one sentence."""

import bz2
import gzip
import io
import lzma
import os
import zipfile

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.errors import CoterieError
from coterie.storage import memory
from support.attacks import Attack, refuse

ROWS = 40


def text(x="{i}.5", y="{bit}", who="c{client}", header="who,x,y"):
    """Write a table whose cells are made of the row's number, a bit and the number of one of four clients."""
    cells = (part.format(i=i, bit=i // 4 % 2, client=i % 4) for i in range(ROWS) for part in (who, x, y))
    return header + "\n" + "\n".join(",".join(row) for row in zip(*[cells] * 3, strict=True)) + "\n"


def odd(cell, row, **columns):
    """Return a table with one other cell in column x."""
    lines = text(**columns).splitlines()
    lines[row] = f"c0,{cell},1"
    return "\n".join(lines)


def frame(**columns):
    return pd.DataFrame({"who": ["a", "b"] * 20, "x": np.arange(ROWS) % 7 + 0.5, "y": [0, 1, 1, 0] * 10, **columns})


def packed_table(form):
    pack = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}.get(form)
    if pack:
        return pack(text().encode())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", text())
    return file.getvalue()


def flipped(data, place=-20):
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


def write(name, content):
    """Return what makes a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def table(name, content, sentence, file="t.csv", options=(), target="y"):
    """An attack through a table file."""
    command = ("check", file, "--target", target, "--client", "who", *(w for o in options for w in ("--set", o)))
    return Attack(name, write(file, content), command, sentence)


TABLES = [
    table("xz with a flipped byte", flipped(packed_table("xz")), "is not a readable CSV table", "t.csv.xz"),
    table("xz that is not xz", text(), "is not a readable CSV table", "t.csv.xz"),
    table("gz cut in the middle", packed_table("gz")[:60], "is not a readable CSV table", "t.csv.gz"),
    table("bz2 with a flipped byte", flipped(packed_table("bz2")), "is not a readable CSV table", "t.csv.bz2"),
    table("zip that is not zip", text(), "is not a readable CSV table", "t.csv.zip"),
    table("zip with a flipped byte", flipped(packed_table("zip"), 60), "is not a readable CSV table", "t.csv.zip"),
    table("duplicate target column", "who,x,y,y\na,1,0,0\n", "has two columns called 'y'"),
    table("+-1e200 column", text(x="{bit}e200"), "in column 'x', row 5 of the data, that is too large to compute with"),
    table("target of 1e200", text(y="{i}.5e200"), "in the target column 'y', row 40 of the data, that is too large"),
    table("dates as target", text(y="2020-01-1{bit}"), "has dates in the target column 'y'"),
    table("a word in a numeric target", text(y="{i}").replace("17\n", "abc\n"), "has 'abc' in row 18 of the target"),
    table("a word among dates", odd("soon", 9, x="20{i:02}-01-01"), "dates in column 'x', but 'soon' in row 9 is none"),
    table("a row that is longer than others", text() + "a,1,2,3,4\n", "is not a readable CSV table"),
    table("a client name of 5,000 letters", text(who="c{client}" + "x" * 5000), "has a client name of 5,002 letters"),
    table("an encoding that does not exist", text(), "unknown encoding: foo", options=["data.encoding=foo"]),
    table("a separator that is no expression", text(), "unterminated subpattern", options=["data.sep='(('"]),
    table("a cell of 200,000 letters", text(x="a" * 200_000), "field larger than field limit"),
    table("bytes that are no text", b"\x00\x01\x02" * 99, "is not a readable CSV table"),
    table("an empty file", b"", "is not a readable CSV table (it is empty)"),
    table("only names", "who,x,y\n", "t.csv has no rows"),
    table("a table in a tar archive", b"", ".tar files are not read; save the table as .csv", "t.csv.tar"),
    table("a table packed with zst", b"", ".zst files are not read; save the table as .csv", "t.csv.zst"),
    table("parquet that is none", b"PAR1 and nothing else", "is not a readable Parquet table", "t.parquet"),
]


def parquet(name, content, sentence):
    """An attack through a Parquet file made of a data frame."""
    command = ("check", "t.parquet", "--target", "y", "--client", "who")
    return Attack(name, lambda folder: content().to_parquet(folder / "t.parquet"), command, sentence)


PARQUET = [
    parquet("times as target", lambda: frame(y=pd.date_range("2020", periods=ROWS)), "has dates in the target column"),
    parquet("days as target", lambda: frame(y=pd.date_range("2020", periods=ROWS).date), "has dates in the target"),
    parquet(
        "no client in one row", lambda: frame(who=["a", None, "b", "c"] * 10), "has no value in column 'who', row 2"
    ),
]


def arrays(name, make, sentence, *options):
    """An attack through the arrays of an .npz file, or through its bytes."""

    def prepare(folder):
        made = make()
        if isinstance(made, bytes):
            (folder / "t.npz").write_bytes(made)
        else:
            np.savez(folder / "t.npz", **made)

    words = ("data.name=npz", "data.path=t.npz", *options)
    return Attack(name, prepare, ("check", *(word for option in words for word in ("--set", option))), sentence)


def whole(**changes):
    return {"x": np.ones((ROWS, 1)), "y": np.arange(ROWS) % 2, "client": np.arange(ROWS) % 3, **changes}


def archive(edit=lambda data: data, **members):
    """Return the bytes of an .npz file whose members are given as bytes."""
    file = io.BytesIO()
    np.savez(file, **whole())
    with zipfile.ZipFile(file, "a") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return edit(file.getvalue())


def promising(shape):
    """Return an array file whose header promises another shape than there is."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(800)


def another_version(data):
    """Set the version of zip that is needed to unpack, in the archive's directory, to 10.9."""
    place = data.index(b"PK\x01\x02")
    return data[: place + 6] + b"\x6d" + data[place + 7 :]


def twice(data):
    """Give the member w the name of another."""
    return data.replace(b"w.npy", b"x.npy")


NPZ = [
    arrays("unsupported version of zip", lambda: archive(another_version), "is not a readable .npz file (zip file ver"),
    arrays("10**15 samples promised", lambda: archive(**{"z.npy": promising((10**15,))}), "its header says (10000000"),
    arrays("10**30 samples promised", lambda: archive(**{"z.npy": promising((10**30,))}), "its header says (10000000"),
    arrays("-1 samples promised", lambda: archive(**{"z.npy": promising((-1, -100))}), "its header says (-1, -100)"),
    arrays("a member that is no array", lambda: archive(**{"z.npy": b"hello, world"}), "is not a readable .npz file"),
    arrays("two arrays of one name", lambda: archive(twice, **{"w.npy": b""}), "holds two arrays called 'x'"),
    arrays("cut in the middle", lambda: archive()[:400], "is not a readable .npz file"),
    arrays("no arrays at all", lambda: {"readme": np.array("x")}, "holds no array 'x' (it has readme)"),
    arrays("2-D clients", lambda: whole(client=np.zeros((ROWS, 2))), "client in t.npz must have one entry per sample"),
    arrays("a client that is NaN", lambda: whole(client=np.full(ROWS, np.nan)), "client in t.npz: sample 0 has no val"),
    arrays("a single split", lambda: whole(split=np.array("train")), "split in t.npz must have one entry per sample"),
    arrays("a single y", lambda: whole(y=np.array(1)), "x and y must have one entry per sample"),
    arrays("complex inputs", lambda: whole(x=np.ones((ROWS, 1)) * 1j), "x in t.npz must be numbers, not complex128"),
    arrays("complex targets", lambda: whole(y=np.ones(ROWS) * 1j), "y in t.npz must be numbers or words, not complex"),
    arrays("structured inputs", lambda: whole(x=np.zeros(ROWS, "f4,i4")), "x in t.npz must be numbers, not [('f0'"),
    arrays("times as targets", lambda: whole(y=np.zeros(ROWS, "M8[s]")), "must be numbers or words, not datetime64[s]"),
    arrays("inputs of 1e200", lambda: whole(x=np.full((ROWS, 1), 1e200)), "x in t.npz hold the number 1e+200"),
    arrays("characters below 0", lambda: whole(x=np.full((ROWS, 2), -5), y=np.ones((ROWS, 2), int)), "hold -5, which"),
    arrays("characters of 2**40", lambda: whole(x=np.full((ROWS, 2), 2**40), y=np.ones((ROWS, 2), int)), "is no char"),
]


def path(name, value, prepare=lambda folder: None, sentence="", kind="table"):
    command = ("check", "--set", f"data.name={kind}", "--set", f"data.path={value}")
    return Attack(name, prepare, (*command, *(("--set", "data.target=y") if kind == "table" else ())), sentence)


PATHS = [
    path(f"{name} ({kind})", value, prepare, sentence, kind)
    for kind in ("table", "npz", "libsvm")
    for name, value, prepare, sentence in [
        ("a path of 5,000 letters", "x" * 5000, lambda folder: None, "cannot be opened (File name too long)"),
        ("a home that does not exist", "~nosuchuser/x.csv", lambda folder: None, "names a home folder that does not"),
        ("a pipe", "pipe.csv", lambda folder: os.mkfifo(folder / "pipe.csv"), "pipe.csv is not a file"),
        ("a device", "/dev/zero", lambda folder: None, "/dev/zero is not a file"),
    ]
]


@pytest.mark.parametrize("attack", [*TABLES, *PARQUET, *NPZ, *PATHS], ids=str)
def test_refused(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(attack, tmp_path)


def test_a_folder_with_a_pipe_among_its_tables(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for site in ("a", "b"):
        (tmp_path / f"{site}.csv").write_text(text())
    assert ct.load(str(tmp_path), target="y", drop=["who"]).names == ("a", "b")


def test_names_that_are_not_utf_8(tmp_path):
    for site in (b"a.csv", b"\xff.csv"):
        with open(os.fsencode(tmp_path) + b"/" + site, "w") as file:
            file.write(text())
    for place in (str(tmp_path), str(tmp_path / "*.csv"), os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")):
        with pytest.raises(CoterieError, match="rename the file"):
            ct.load(place, target="y", drop=["who"])


class TestBombs:
    """What unpacks to more than fits is refused while it is unpacked; here a little memory is free."""

    @pytest.fixture(autouse=True)
    def little(self, monkeypatch):
        monkeypatch.setattr(memory, "_machine", lambda: 1 << 20)

    @pytest.mark.parametrize("form", ["gz", "xz", "bz2"])
    def test_a_table(self, form, tmp_path):
        pack = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[form]
        (tmp_path / f"t.csv.{form}").write_bytes(pack(text().encode() + b"c1,1.5,1\n" * 200_000))
        with pytest.raises(CoterieError, match=r"holds more than .* are free; use a file with fewer rows or columns"):
            ct.load(str(tmp_path / f"t.csv.{form}"), target="y", client="who")

    def test_arrays(self, tmp_path):
        np.savez_compressed(tmp_path / "t.npz", **whole(x=np.zeros((ROWS, 10_000))))
        with pytest.raises(CoterieError, match=r"unpacked, needs about 3\.2 MB of memory, and 1\.0 MB are free"):
            ct.load("npz", path=tmp_path / "t.npz")

    def test_sparse_rows(self, tmp_path):
        (tmp_path / "t.txt").write_text("1 99999:1\n0 1:1\n" * 9)
        with pytest.raises(CoterieError, match=r"18 rows of 99,999 features as a dense array, needs about 21\.6 MB"):
            ct.load("libsvm", path=tmp_path / "t.txt")

    def test_levels_of_words(self):
        words = {f"word{j}": [f"level {(i + j) % 30}" for i in range(600)] for j in range(20)}
        table = pd.DataFrame({"who": ["a", "b"] * 300, "y": [0, 1, 1, 0] * 150, **words})
        with pytest.raises(
            CoterieError, match=r"600 rows of 600 inputs needs about 4\.3 MB .* drop columns \('word0' "
        ):
            ct.load(table, target="y", client="who")
