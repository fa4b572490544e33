"""How much memory is free: of the machine, or of the container around it."""

import pytest

from coterie.errors import CoterieError
from coterie.storage import memory


@pytest.mark.parametrize("version", ["", "memory"])
def test_a_container_counts_less_what_it_could_give_back(version, tmp_path, monkeypatch):
    limit, used, (one, two) = memory.LIMITS[version]
    (tmp_path / version).mkdir(exist_ok=True)
    for name, content in ((limit, "1000"), (used, "700"), ("memory.stat", f"anon 5\n{one} 30\n{two} 4\n")):
        (tmp_path / version / name).write_text(content + "\n")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert memory.available() == 1000 - 700 + 34


def test_a_container_without_a_limit(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    monkeypatch.setattr(memory, "_machine", lambda: 77)
    assert memory.available() == 77


def test_what_does_not_fit_is_said_with_its_size(monkeypatch):
    monkeypatch.setattr(memory, "_machine", lambda: 2_500_000)
    memory.refuse_beyond(2_500_000, "this", "do that")
    with pytest.raises(CoterieError, match=r"this needs about 3\.0 GB of memory, and 2\.5 MB are free; do that"):
        memory.refuse_beyond(3 * 10**9, "this", "do that")
    assert memory.in_words(12) == "12 bytes"
