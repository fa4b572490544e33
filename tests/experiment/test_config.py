"""The experiment file: complete, typed, re-runnable, and every mistake is one sentence that names the key."""

import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie.data.partition import Classes, Natural
from coterie.errors import CoterieError
from coterie.experiment.config import Experiment
from coterie.experiment.fingerprint import fingerprint
from coterie.experiment.job import Job
from coterie.storage.toml import dump_toml, parse_override, read_toml

text = st.text(st.characters(codec="utf-8"))
values = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), text, st.lists(text))


@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), values))
def test_a_written_file_reads_back_as_what_was_written(table):
    assert tomllib.loads(dump_toml({"format": 1, "section": table})) == {"format": 1, "section": table}


@settings(deadline=None)  # the first example imports JAX
@given(rounds=st.integers(1, 10**6), lr=st.floats(1e-6, 10), tie=st.floats(0, 10), hidden=st.lists(st.integers(1, 99)))
def test_the_complete_experiment_reads_back_equal(rounds, lr, tie, hidden):
    tables = {
        "method": {"name": "ditto", "lr": lr, "tie": tie},
        "model": {"name": "mlp", "hidden": hidden, "personal": ["layers.1"]},
        "run": {"rounds": rounds},
    }
    experiment = Experiment.from_dict(tables)
    assert Experiment.from_dict(tomllib.loads(dump_toml(experiment.to_dict()))) == experiment
    assert (experiment.method.spec.lr, experiment.run.rounds) == (lr, rounds)
    assert experiment.model.spec.hidden == tuple(hidden)


def test_the_file_of_the_module_docstring_is_accepted():
    tables = tomllib.loads(
        """
        format = 1
        [data]
        name = "digits"
        [partition]
        name = "classes"
        clients = 12
        classes = 4
        [model]
        name = "mlp"
        personal = []
        [method]
        name = "ditto"
        lr = 0.1
        [graph]
        name = "exponential"
        [run]
        rounds = 7
        seed = 3
        """
    )
    experiment = Experiment.from_dict(tables)
    assert (experiment.partition.common.clients, experiment.partition.spec.classes) == (12, 4)
    assert (experiment.method.name, experiment.method.spec.lr, experiment.run.seed) == ("ditto", 0.1, 3)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"methd": {}}, "unknown section [methd]; did you mean method?"),
        ({"method": {"name": "ditto", "tye": 1.0}}, "unknown key method.tye for ditto; did you mean tie?"),
        ({"method": {"name": "fedavg", "zzz": 1}}, "unknown key method.zzz for fedavg; known: batch_size"),
        ({"run": {"round": 3}}, "unknown key run.round; did you mean rounds?"),
        (
            {"partition": {"name": "classes", "clases": 2}},
            "unknown key partition.clases for classes; did you mean classes?",
        ),
        ({"augment": {"flop": True}}, "unknown key augment.flop; did you mean flip?"),
        ({"run": {"rounds": 0}}, "run.rounds must be at least 1, not 0"),
        ({"run": {"rounds": "ten"}}, "run.rounds must be integer, not 'ten'"),
        ({"run": {"rounds": True}}, "run.rounds must be integer, not True"),
        ({"run": {"mode": "slow"}}, "run.mode must be one of auto, exact, fast, not 'slow'"),
        ({"method": {"lr": -1.0}}, "method.lr must be greater than 0, not -1"),
        ({"method": {"lr": float("nan")}}, "method.lr must be a number, not nan"),
        ({"method": {"name": "dito"}}, "there is no method called 'dito'; did you mean ditto?"),
        ({"method": {"name": "dpsgd"}}, "differentially private"),
        ({"method": {"name": 3}}, "method.name must be text, not 3"),
        ({"method": "ditto"}, "method must be a section: write [method]"),
        ({"data": {"name": "digts"}}, "there is no dataset called 'digts'; did you mean digits?"),
        ({"data": {"name": "csv", "target": "y"}}, "data.path is required"),
        ({"graph": {"name": "rng"}}, "there is no graph called 'rng'; did you mean ring?"),
        ({"graph": {"weights": "metro"}}, "graph.weights must be one of auto, metropolis"),
        ({"model": {"name": "mlp", "hidden": [0]}}, "model.hidden must hold layer sizes of at least 1"),
        ({"format": 2}, "format must be 1, not 2"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(tables, sentence):
    with pytest.raises(CoterieError) as caught:
        Experiment.from_dict(tables)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_key_of_a_section_leaves_the_rest_of_the_first_experiment_alone():
    whole = Experiment.from_dict({})
    assert (whole.partition.name, whole.partition.common.clients, whole.partition.spec.classes) == ("classes", 20, 3)
    fewer = Experiment.from_dict({"partition": {"clients": 10}})
    assert (fewer.partition.name, fewer.partition.common.clients, fewer.partition.spec.classes) == ("classes", 10, 3)
    assert Experiment.from_dict({"partition": {"name": "iid", "clients": 10}}).partition.name == "iid"


OWN_DATA = """
import numpy as np
from coterie.data.samples import Samples
from coterie.spec import param, spec

@spec
class Own:
    "Data of my own."

    owned: bool = param(True, "whether they say whose sample it is")

    def load(self):
        x, y = np.arange(120.0, dtype=np.float32)[:, None], np.arange(120) // 3 % 4
        owner = np.arange(120) % 3 if self.owned else None
        return Samples(x=x, y=y, kind="classification", classes=4, owner=owner)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Data sets of 120 samples from files, which say whose sample it is or do not: name and settings."""
    folder = tmp_path_factory.mktemp("data")
    x, y, owner = np.arange(120.0)[:, None], np.arange(120) // 3 % 4, np.arange(120) % 3
    np.savez(folder / "owned.npz", x=x, y=y, client=owner)
    np.savez(folder / "plain.npz", x=x, y=y)
    pairs = list(zip(y, owner, range(120), strict=True))
    (folder / "table.csv").write_text("\n".join(["y,site,x", *(f"{c},{o},{i + 0.5}" for c, o, i in pairs)]))
    (folder / "owned.txt").write_text("".join(f"{c} qid:{o} 1:{i + 1}\n" for c, o, i in pairs))
    (folder / "plain.txt").write_text("".join(f"{c} 1:{i + 1}\n" for c, _, i in pairs))
    (folder / "own.py").write_text(OWN_DATA)
    table, own = {"path": str(folder / "table.csv"), "target": "y"}, f"{folder / 'own.py'}:Own"
    return {
        ("npz", True): ("npz", {"path": str(folder / "owned.npz")}),
        ("npz", False): ("npz", {"path": str(folder / "plain.npz")}),
        ("libsvm", True): ("libsvm", {"path": str(folder / "owned.txt")}),
        ("libsvm", False): ("libsvm", {"path": str(folder / "plain.txt")}),
        ("csv", True): ("csv", table | {"client": "site"}),
        ("csv", False): ("csv", table),
        ("own", True): (own, {}),
        ("own", False): (own, {"owned": False}),
        ("planted-groups", True): ("planted-groups", {}),
    }


@pytest.mark.parametrize("clients", [None, 2])
@pytest.mark.parametrize(
    ("source", "owned"),
    [(name, owned) for name in ("npz", "libsvm", "csv", "own") for owned in (True, False)] + [("planted-groups", True)],
)
def test_the_data_decide_how_they_are_divided_from_a_file_and_from_python(sources, source, owned, clients):
    name, options = sources[source, owned]
    cap = {} if clients is None else {"clients": clients}
    asked = Experiment.from_dict({"data": {"name": name, **options}, "partition": cap})
    experiment, federation = asked.load()
    assert (asked.partition.name, experiment.partition.name) == ("auto", "natural" if owned else "classes")
    assert experiment.partition.common == asked.partition.common
    if source != "planted-groups":  # for coterie.load, `clients` is a setting of synthetic data, too
        assert fingerprint(federation) == fingerprint(coterie.load(name, clients=clients, **options))
    if clients is not None:
        assert len(federation) == clients
    written = Experiment.from_dict(tomllib.loads(dump_toml(experiment.to_dict())))
    assert written == experiment
    assert fingerprint(written.load()[1]) == fingerprint(federation)


def test_settings_of_a_partition_that_is_not_named_go_to_the_one_the_data_choose(sources):
    def load(owned, **settings):
        name, options = sources["npz", owned]
        return Experiment.from_dict({"data": {"name": name, **options}, "partition": settings}).load()[0].partition.spec

    assert load(False, classes=3, clients=4, test=0.3) == Classes(classes=3, test=0.3)
    assert load(True, at_least=4, validation=0.2) == Natural(at_least=4, validation=0.2)
    with pytest.raises(CoterieError, match=r"^unknown key partition\.classes; known: .*at_least, owners_seed$"):
        load(True, classes=3)
    with pytest.raises(CoterieError, match=r"^unknown key partition\.clases for auto; did you mean classes\?"):
        load(True, clases=3)


def test_a_job_on_given_data_needs_a_decided_partition(sources):
    name, options = sources["npz", True]
    asked = Experiment.from_dict({"data": {"name": name, **options}, "model": {"name": "linear"}})
    experiment, federation = asked.load()
    with pytest.raises(CoterieError, match="partition auto is decided by the data"):
        Job.of(asked, federation)
    assert Job.of(experiment, federation).config == Job.of(asked).config
    assert Job.of(asked).config["partition"]["name"] == "natural"


def test_replace_keeps_the_settings_of_the_same_thing_and_drops_those_of_another():
    experiment = Experiment.from_dict({"method": {"name": "ditto", "lr": 0.3, "tie": 0.7}})
    same = experiment.replace({"method": {"name": "ditto", "tie": 0.2}}).method.spec
    assert (same.lr, same.tie) == (0.3, 0.2)
    other = experiment.replace({"method": {"name": "fedprox"}}).method.spec
    assert other == Experiment.from_dict({"method": {"name": "fedprox"}}).method.spec
    assert experiment.replace({"run": {"seed": 9}}).run.seed == 9


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("method.lr=0.1", {"method": {"lr": 0.1}}),
        ("run.rounds = 5", {"run": {"rounds": 5}}),
        ("method.name=ditto", {"method": {"name": "ditto"}}),
        ('method.name="ditto"', {"method": {"name": "ditto"}}),
        ("augment.flip=true", {"augment": {"flip": True}}),
        ("model.hidden=[8, 4]", {"model": {"hidden": [8, 4]}}),
        ("data.path=a=b.csv", {"data": {"path": "a=b.csv"}}),
    ],
)
def test_overrides_are_read_as_toml_and_a_bare_word_is_text(override, change):
    assert parse_override(override) == change


@pytest.mark.parametrize("override", ["rounds=5", "run.rounds", "=3", ".x=3", "run.=3"])
def test_an_override_without_section_key_or_value_is_refused(override):
    with pytest.raises(CoterieError, match=r"write SECTION\.KEY=VALUE"):
        parse_override(override)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path):
    (tmp_path / "bad.toml").write_text("[run\nrounds = 3")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name, sentence in [
        ("absent.toml", "cannot be read: No such file"),
        (".", "cannot be read: Is a directory"),
        ("bad.toml", "is not valid TOML"),
        ("binary.toml", "is not a text file"),
    ]:
        with pytest.raises(CoterieError, match=sentence):
            read_toml(tmp_path / name)
