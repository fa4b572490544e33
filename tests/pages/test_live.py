"""The page that grows: what it shows of the events of a comparison, and how the small server behaves."""

import contextlib
import http.client
import json
import socket
import threading

import numpy as np
import pytest

from coterie.comparison.folder import ComparisonFolder
from coterie.errors import CoterieError
from coterie.pages import live as live_pages
from coterie.pages.growing import Growing
from coterie.pages.live import serve

METHODS = {"local": "alone", "ditto": "cooperates"}


def metrics(*scores):
    return {"test_score": np.array(scores), "test_loss": 1 - np.array(scores)}


def test_curves_are_means_over_clients_of_the_runs_so_far():
    growing = Growing(METHODS, 4, None, None)
    growing.update("local", 0, "start", 0, 10, {})
    growing.update("local", 0, "round", 5, 10, metrics(0.1, 0.3))
    growing.update("local", 0, "round", 10, 10, metrics(0.4, 0.6))
    growing.update("local", 0, "end", 10, 10, metrics(0.4, 0.6))  # the kept evaluation once more: it counts once
    growing.update("local", 1, "round", 5, 10, metrics(0.5, 0.7))
    growing.update("ditto", 0, "tune", 2, 9, {})
    state = growing.state()
    curve = state["curves"]["local"]
    assert curve["rounds"] == [5, 10]
    assert curve["score"]["mean"] == pytest.approx([0.4, 0.5])
    assert curve["loss"]["mean"] == pytest.approx([0.6, 0.5])
    assert curve["score"]["low"][1] == pytest.approx(np.quantile([0.4, 0.6], 0.1))
    assert (state["done"], state["runs"], state["baseline"]) == (1, 4, "local")
    assert {"method": "ditto", "seed": 0, "stage": "tune", "round": 2, "rounds": 9} in state["running"]
    assert state["curves"]["ditto"]["rounds"] == []


def test_plan_clients_and_failures_are_read_from_the_folder(tmp_path):
    folder = ComparisonFolder(tmp_path / "runs")
    settings = {"seeds": 2, "splits": 5, "tune": True, "command": "coterie compare"}
    methods = {label: {} for label in (*METHODS, "fedavg")}
    folder.write({"data": {"name": "digits"}, "run": {"seed": 0}}, methods, settings)
    run = folder.run("local", 0)
    run.mkdir(parents=True)
    sizes = {"train": [3, 4], "validation": [0, 0], "test": [1, 1]}
    about = {"names": ["a", "b"], "kind": "classification", "classes": 2, "sizes": sizes, "about": "made up"}
    about |= {"groups": None, "label_counts": []}
    (run / "clients.json").write_text(json.dumps(about))
    growing = Growing({**METHODS, "left-out": "cooperates"}, 3, tmp_path / "runs", None)
    growing.update("local", 0, "read", 5, 5, metrics(0.5, 0.5))
    state = growing.state()
    assert [row["method"] for row in state["methods"]] == ["local", "ditto", "fedavg"]
    assert state["runs"] == 15
    assert (state["metric_name"], state["percent"]) == ("accuracy", True)
    assert state["about"] == "2 clients with 7 training samples. made up"
    folder.fail("ditto", "it diverged", {})
    assert growing.state()["failures"] == {"ditto": "it diverged"}
    assert growing.state()["runs"] == 10


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(live_pages, "PAUSE", 0.0)
    with serve(METHODS, 2) as server:
        yield server


def get(live, path, host=None):
    """Status, type and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()


@contextlib.contextmanager
def following(live):
    """The server-sent events, as pairs of name and data."""
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/events")
        with connection.getresponse() as response:
            yield messages(response)


def messages(lines):
    fields = {}
    for line in lines:
        key, _, value = line.decode().strip().partition(": ")
        if key:
            fields[key] = value
        else:
            yield fields.get("event", "message"), json.loads(fields["data"])
            fields = {}


def test_it_serves_one_page_to_this_computer_only(live):
    assert live.url == f"http://127.0.0.1:{live.port}/"
    status, kind, text = get(live, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert "connect-src 'self'" in text
    assert 'id="score-curve"' in text
    assert get(live, "/", host=f"localhost:{live.port}")[0] == 200
    assert get(live, "/", host="evil.example")[0] == 403  # another name for this address
    assert get(live, "/etc/passwd")[0] == 404
    assert live._server.server_address[0] == "127.0.0.1"


def test_events_bring_the_state_and_the_end_brings_the_report(live):
    with following(live) as events:
        assert next(events)[1]["done"] == 0
        live.update("local", 0, "round", 5, 10, metrics(0.25, 0.75))
        name, state = next(events)
        assert (name, state["curves"]["local"]["score"]["mean"]) == ("message", [0.5])
        live.finish("<p>the report</p>")
        assert next(events)[0] == "message"
        assert next(events) == ("end", {"words": "The comparison has ended.", "report": True})
    closing = threading.Thread(target=live.close)
    closing.start()  # it waits for the open page to load the report
    assert get(live, "/")[2] == "<p>the report</p>"
    closing.join(timeout=10)
    assert not closing.is_alive()
    with pytest.raises(OSError, match="refused"):
        get(live, "/")


def test_a_comparison_that_stops_says_so():
    live = serve(METHODS, 2)
    with following(live) as events:
        next(events)
        live.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        said = [message for name, message in events if name == "end"]
    assert said == [{"words": "The comparison has stopped before its end.", "report": False}]


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CoterieError, match=f"--port {port} cannot be used"):
            serve(METHODS, 2, port=port)


def test_events_go_to_the_screen_and_to_the_page(live):
    seen = []
    live.beside(lambda *event: seen.append(event))("local", 0, "round", 1, 2, metrics(1.0))
    assert seen[0][:5] == ("local", 0, "round", 1, 2)
    assert live.growing.state()["curves"]["local"]["score"]["mean"] == [1.0]
