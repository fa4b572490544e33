"""Files for a paper: tables and figures from a comparison, and what is answered where that cannot be."""

import sys

import pytest

from coterie.errors import CoterieError
from coterie.pages.drawing import draw_figures
from coterie.pages.papers import write_figures, write_tables
from support.report_cases import make_comparison


@pytest.fixture(scope="module")
def comparison():
    return make_comparison(seeds=2)


@pytest.mark.parametrize(("form", "names"), [("latex", ["table.tex"]), ("csv", ["table.csv", "results.csv"])])
def test_tables(comparison, tmp_path, form, names):
    files = write_tables(comparison, tmp_path / "paper", form)
    assert [file.name for file in files] == names
    assert all(file.read_text() for file in files)


def test_figures_are_vector_graphics_with_text(comparison, tmp_path):
    files = draw_figures(comparison, tmp_path, "svg")
    assert [file.name for file in files] == ["curves.svg", "loss.svg", "gains.svg", "graph-gossip-sgd.svg"]
    curves, _, gains, graph = (file.read_text() for file in files)
    for name in comparison.results:
        assert f">{name}<" in curves
    assert ">fedavg<" in gains
    assert ">local<" not in gains  # gains are over training alone
    assert ">weight<" in graph
    assert [file.read_bytes() for file in draw_figures(comparison, tmp_path / "again", "svg")] == [
        file.read_bytes() for file in files
    ]


def test_figures_as_pdf(comparison, tmp_path):
    files = write_figures(make_comparison(methods=("local", "fedavg"), seeds=1), tmp_path, "pdf")
    assert [file.name for file in files] == ["curves.pdf", "loss.pdf", "gains.pdf"]
    for file in files:
        data = file.read_bytes()
        assert data.startswith(b"%PDF-")
        assert data.rstrip().endswith(b"%%EOF")
        assert b"CreationDate" not in data  # the bytes depend on the numbers alone


def test_what_cannot_be_written_is_refused(comparison, tmp_path, monkeypatch):
    with pytest.raises(
        CoterieError, match=r"--format must be one of latex, markdown, csv, not 'tex'; did you mean latex\?"
    ):
        write_tables(comparison, tmp_path, "tex")
    with pytest.raises(CoterieError, match="--figures must be one of pdf, svg, not 'png'"):
        write_figures(comparison, tmp_path, "png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(CoterieError, match=r"figures need Matplotlib; .*pip install 'coterie\[figures\]'"):
        write_figures(comparison, tmp_path, "pdf")
