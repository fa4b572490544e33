"""Files as they are: separator, decimal sign, encoding and header are found; several files are joined by name."""

import gzip
import lzma
import zipfile

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data.tables.read import join, looks_like_a_table, of_frame, read
from coterie.data.tables.source import Csv, Parquet, Table
from coterie.errors import CoterieError

ROWS = [("north", 1.5, "yes"), ("south", 2.25, "no"), ("north", 3.0, "no"), ("south", 4.0, "yes")] * 5
FRAME = pd.DataFrame(ROWS, columns=["site", "dose", "died"])


def text(sep=",", decimal=".", header=True):
    lines = [sep.join(["site", "dose", "died"])] if header else []
    lines += [sep.join([site, str(dose).replace(".", decimal), died]) for site, dose, died in ROWS]
    return "\n".join(lines) + "\n"


def values(samples):
    """The numbers of a table with one number column, before they are scaled."""
    return samples.table.numbers[:, 0].tolist()


@pytest.mark.parametrize("sep", [",", ";", "\t", "|"])
@pytest.mark.parametrize("decimal", [".", ","])
def test_separator_and_decimal_sign_are_found(tmp_path, sep, decimal):
    body = text(sep, decimal)
    if sep == decimal:
        body = "\n".join(
            ",".join([site, f'"{str(dose).replace(".", ",")}"', died])
            for site, dose, died in [("site", "dose", "died"), *ROWS]
        )
    (tmp_path / "t.csv").write_text(body)
    samples = Csv(path=str(tmp_path / "t.csv"), target="died", client="site").load()
    assert values(samples) == FRAME["dose"].tolist()
    assert samples.class_names == ("no", "yes")
    assert samples.owner.tolist() == FRAME["site"].tolist()


@pytest.mark.parametrize(
    ("encoding", "word"), [("utf-8", "Zürich"), ("utf-8-sig", "Zürich"), ("cp1252", "Zürich"), ("utf-16", "東京")]
)
def test_encoding_is_found(tmp_path, encoding, word):
    (tmp_path / "t.csv").write_bytes(text().replace("north", word).encode(encoding))
    assert ct.load(tmp_path / "t.csv", target="died", client="site").names == (word, "south")


def test_a_letter_far_down_and_an_encoding_that_is_set(tmp_path):
    body = text() + "north,1.5,yes\n" * 30_000
    (tmp_path / "t.csv").write_bytes((body + "Zürich,1,no\nZürich,2,yes\n").encode("cp1252"))
    samples = Table(path=str(tmp_path / "t.csv"), target="died", client="site").load()
    assert samples.owner[-1] == "Zürich"
    (tmp_path / "t.csv").write_bytes(text().replace("north", "Łódź").encode("cp1250"))
    samples = Table(path=str(tmp_path / "t.csv"), target="died", client="site", encoding="cp1250").load()
    assert samples.owner[0] == "Łódź"


@pytest.mark.parametrize(
    ("head", "target"),
    [
        ("# exported\n\n" + text(), "died"),
        ("A report of 2021\n" + text(), "died"),
        ('"dose","died"\n' + "\n".join(f'"{i}",{d},"{y}"' for i, (_, d, y) in enumerate(ROWS)), "died"),  # R
        ("\n".join(f"{i % 2},{d},{i % 3}" for i, (_, d, _) in enumerate(ROWS)), "column 3"),
    ],
)
def test_the_header_is_found(tmp_path, head, target):
    (tmp_path / "t.csv").write_text(head)
    samples = Table(path=str(tmp_path / "t.csv"), target=target).load()
    dose = next(c for c in samples.table.columns if c.name in ("dose", "column 2"))
    assert dose.kind == "number"
    assert len(samples) == 20
    assert samples.table.warnings


def test_the_header_can_be_set(tmp_path):
    (tmp_path / "t.csv").write_text("1,2,3\n" + "\n".join(f"{i % 2},{d},{i % 3}" for i, (_, d, _) in enumerate(ROWS)))
    assert Table(path=str(tmp_path / "t.csv"), target="3", header=1).load().classes == 3
    (tmp_path / "t.csv").write_text(text(sep=" "))
    assert values(Table(path=str(tmp_path / "t.csv"), target="died", sep=" ").load()) == FRAME["dose"].tolist()


def test_packed_files_and_parquet(tmp_path):
    raw = text().encode()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "a.csv.xz").write_bytes(lzma.compress(raw))
    with zipfile.ZipFile(tmp_path / "a.csv.zip", "w") as archive:
        archive.writestr("a.csv", raw)
    FRAME.to_parquet(tmp_path / "a.parquet")
    for file in sorted(tmp_path.iterdir()):
        assert values(Table(path=str(file), target="died", client="site").load()) == FRAME["dose"].tolist()


class TestSites:
    """One file per site."""

    @pytest.fixture
    def folder(self, tmp_path):
        for site, part in FRAME.groupby("site"):
            part.drop(columns="site").assign(extra=1.0)[
                ["died", "dose", "extra"][:: 1 if site == "north" else -1]
            ].to_csv(tmp_path / f"{site}.csv", index=False)
        return tmp_path

    def test_a_folder_a_pattern_and_a_list(self, folder):
        files = sorted(folder.iterdir())
        loaded = [
            ct.load(p, target="died", seed=3) for p in (folder, f"{folder}/*.csv", files, [str(f) for f in files])
        ]
        joined = ct.load(FRAME, target="died", client="site", seed=3)
        for federation in loaded:
            assert federation.names == ("north", "south")
            np.testing.assert_array_equal(federation.train.x, joined.train.x)  # columns in another order
            np.testing.assert_array_equal(federation.train.y, joined.train.y)

    def test_in_a_config_file(self, folder):
        from coterie.experiment.config import Experiment

        tables = {"data": {"name": "table", "path": [str(f) for f in sorted(folder.iterdir())], "target": "died"}}
        experiment, federation = Experiment.from_dict(tables).load()
        assert federation.names == ("north", "south")
        assert Experiment.from_dict(experiment.to_dict()) == experiment

    def test_sites_that_differ_are_named_with_the_columns(self, folder):
        FRAME.assign(smoker=1, extra=1.0).drop(columns="site").to_csv(folder / "west.csv", index=False)
        samples = Table(path=str(folder), target="died").load()
        assert "north, south have no column 'smoker': left out everywhere" in samples.table.warnings

    def test_sites_without_a_common_column_or_target(self, folder):
        pd.DataFrame({"a": [1], "b": [2]}).to_csv(folder / "west.csv", index=False)
        with pytest.raises(CoterieError, match=r"no column in common \(north has died, dose, extra, south has"):
            Table(path=str(folder), target="died").load()
        FRAME.drop(columns=["site", "died"]).to_csv(folder / "west.csv", index=False)
        with pytest.raises(CoterieError, match=r"has no column 'died'"):
            Table(path=str(folder), target="died").load()

    def test_one_site_or_none(self, tmp_path):
        with pytest.raises(CoterieError, match=r"is a folder without tables"):
            Table(path=str(tmp_path), target="died").load()
        with pytest.raises(CoterieError, match=r"no file matches .*\*\.csv"):
            Table(path=str(tmp_path / "*.csv"), target="died").load()
        FRAME.to_csv(tmp_path / "a.csv", index=False)
        with pytest.raises(CoterieError, match="one site only"):
            Table(path=str(tmp_path / "*.csv"), target="died").load()
        (tmp_path / "deep").mkdir()
        FRAME.to_csv(tmp_path / "deep" / "a.csv", index=False)
        with pytest.raises(CoterieError, match="two files are called a"):
            Table(path=[str(tmp_path / "a.csv"), str(tmp_path / "deep" / "a.csv")], target="died").load()

    def test_text_and_numbers_in_the_same_column_of_two_sites(self):
        parts = {"a": of_frame(pd.DataFrame({"n": [1, 2]})), "b": of_frame(pd.DataFrame({"n": ["3,5", "4"]}))}
        assert join(parts, "both").frame["n"].tolist() == [1, 2, "3,5", "4"]


@pytest.mark.parametrize(("kind", "name"), [(Csv, "CSV"), (Parquet, "Parquet")])
def test_what_cannot_be_read_is_one_sentence(kind, name, tmp_path):
    with pytest.raises(CoterieError, match=r"path: there is no file .*nowhere"):
        kind(path=str(tmp_path / "nowhere"), target="y").load()
    with pytest.raises(CoterieError, match="cannot be opened"):
        kind(path="x" * 5000, target="y").load()
    end = {"CSV": "csv", "Parquet": "parquet"}[name]
    for data in (b"\xff\xfe\x00\x81garbage\n" * 3, b"", b"PAR1 and nothing else"):
        (tmp_path / f"t.{end}").write_bytes(data)
        with pytest.raises(CoterieError, match=r"is not a readable (CSV|Parquet) table"):
            kind(path=str(tmp_path / f"t.{end}"), target="y").load()


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zip"])
def test_damaged_packed_files(tmp_path, ending):
    (tmp_path / f"t.csv{ending}").write_bytes(b"not packed at all")
    with pytest.raises(CoterieError, match="is not a readable CSV table"):
        read(str(tmp_path / f"t.csv{ending}"))


def test_other_formats_rows_of_other_lengths_and_equal_names(tmp_path):
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(CoterieError, match=r"\.xlsx files are not read; save the table as \.csv"):
        read(str(tmp_path / "t.xlsx"))
    (tmp_path / "t.csv").write_text("who,x,y,y\na,1,0,0\nb,2,1,1\n")
    with pytest.raises(CoterieError, match=r"has two columns called 'y'; rename one"):
        read(str(tmp_path / "t.csv"))
    with pytest.raises(CoterieError, match=r"has two columns called 'y'"):
        ct.load(pd.DataFrame([[1, 2, 3]], columns=["x", "y", "y"]), target="y")
    (tmp_path / "t.csv").write_text(text() + "a,b,c,d,e\n")
    with pytest.raises(CoterieError, match=r"is not a readable CSV table \(.*line 22"):
        read(str(tmp_path / "t.csv"))


def test_what_looks_like_a_table(tmp_path):
    assert all(map(looks_like_a_table, ["a.csv", "b/*.tsv", "c.parquet", "d.csv.gz", tmp_path, f"{tmp_path}"]))
    assert not any(map(looks_like_a_table, ["digits", "mine.py:Data", "package.csv:Data", 7, None]))
