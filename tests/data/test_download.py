"""Downloads, against a real HTTP server on this machine: whole, truncated, wrong, missing, and no server at all."""

import hashlib
import http.server
import socket
import threading
from pathlib import Path

import pytest

from coterie.data.download import Remote, fetch, folder, locate
from coterie.errors import CoterieError, StorageError

CONTENT = bytes(range(256)) * 3000  # several blocks


class Server:
    """Serves `files` by path; a value (content, length) claims another length than it sends."""

    def __init__(self):
        self.files: dict[str, bytes | tuple[bytes, int]] = {}
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                file = outer.files.get(self.path)
                if file is None:
                    self.send_error(404)
                    return
                content, length = file if isinstance(file, tuple) else (file, len(file))
                self.send_response(200)
                if length >= 0:
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server():
    with Server() as running:
        yield running


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """Give the test an empty data folder and no mirror."""
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("COTERIE_MIRROR", raising=False)
    return tmp_path / "data"


def remote(*addresses: str, content: bytes = CONTENT, kind: str = "sha256") -> Remote:
    return Remote("set", "file.bin", addresses, f"{kind}:{hashlib.new(kind, content).hexdigest()}")


def closed_address() -> str:
    """Return an address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_whole(server, data, kind):
    server.files["/a"] = CONTENT
    seen = []
    path = fetch(remote(f"{server.address}/a", kind=kind), progress=lambda done, total: seen.append((done, total)))
    assert path == data / "set" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]  # nothing temporary is left
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_an_existing_file_is_not_downloaded_again(server, data):
    server.files["/a"] = CONTENT
    wanted = remote(f"{server.address}/a")
    assert fetch(wanted) == fetch(wanted)
    assert server.requests == ["/a"]


def test_a_file_of_the_user_is_used_as_it_is(data):
    (data / "set").mkdir(parents=True)
    (data / "set" / "file.bin").write_bytes(b"mine")
    assert fetch(remote("http://not.asked")).read_bytes() == b"mine"


def test_no_length_given(server, data):
    server.files["/a"] = (CONTENT, -1)
    seen = []
    fetch(remote(f"{server.address}/a"), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(CONTENT), None)


def assert_refused(wanted: Remote, data: Path, *parts: str) -> None:
    with pytest.raises(CoterieError) as caught:
        fetch(wanted)
    for part in (*parts, f"put the file file.bin into {data / 'set'}", "COTERIE_DATA"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((data / "set").iterdir()) == []


def test_truncated(server, data):
    server.files["/a"] = (CONTENT[:1000], len(CONTENT))
    assert_refused(remote(f"{server.address}/a"), data, f"ended after 1000 of {len(CONTENT)} bytes")


def test_truncated_without_a_length(server, data):
    server.files["/a"] = (CONTENT[:1000], -1)
    assert_refused(remote(f"{server.address}/a"), data, "its sha256 checksum is")


def test_wrong_checksum(server, data):
    server.files["/a"] = CONTENT[::-1]
    expected, actual = (hashlib.md5(c).hexdigest() for c in (CONTENT, CONTENT[::-1]))
    assert_refused(remote(f"{server.address}/a", kind="md5"), data, f"its md5 checksum is {actual}, not {expected}")


def test_not_found(server, data):
    assert_refused(remote(f"{server.address}/a"), data, f"{server.address}/a: the server answered 404")


def test_no_network(data):
    assert_refused(remote(f"{closed_address()}/a"), data, "no connection", "refused")


def test_no_address(data):
    assert_refused(remote("nonsense"), data, "nonsense: no usable answer")


def test_the_next_address_is_tried(server, data):
    server.files["/page"] = b"<html>we have moved</html>"
    server.files["/good"] = CONTENT
    path = fetch(remote(f"{closed_address()}/a", f"{server.address}/page", f"{server.address}/good"))
    assert path.read_bytes() == CONTENT
    assert server.requests == ["/page", "/good"]


def test_every_reason_is_named(server, data):
    away = closed_address()
    assert_refused(
        remote(f"{away}/a", f"{server.address}/b"), data, f"{away}/a: no connection", "/b: the server answered"
    )


def test_mirror_from_the_environment(server, data, monkeypatch):
    server.files["/copy/set/file.bin"] = CONTENT
    monkeypatch.setenv("COTERIE_MIRROR", f"{server.address}/copy/")
    assert fetch(remote("http://not.asked")).read_bytes() == CONTENT


def test_mirror_as_an_argument(server, data):
    server.files["/set/file.bin"] = CONTENT
    assert fetch(remote("http://not.asked"), mirror=server.address).read_bytes() == CONTENT


def test_folder_that_cannot_be_written(server, data):
    data.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot be written"):
        fetch(remote(f"{server.address}/a"))
    assert server.requests == []


def test_a_full_disk_is_reported_and_leaves_no_file(server, data, monkeypatch):
    """Writing beyond the limit that the system sets for a file fails like a full disk."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    server.files["/a"] = CONTENT
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"file.bin cannot be written \(File too large\)"):
            fetch(remote(f"{server.address}/a"), progress=lambda done, total: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert list((data / "set").iterdir()) == []


def test_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert folder() == tmp_path
    monkeypatch.delenv("COTERIE_DATA")
    assert folder().name == "coterie"


def test_locate(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two").touch()
    assert locate(["one", "two"], [tmp_path / "a", tmp_path / "b"]) == tmp_path / "b" / "two"
    assert locate(["three"], [tmp_path]) is None
