"""The files of `coterie init --federation`: a commented federation.toml, one site.toml per member, and columns.json.

Without a table it is a working example: every member listens on this machine, and all take their part of the embedded
digits. With a table each site has its own, and what its columns are is written down for all of them.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.data.tables.read import site_files
from coterie.data.tables.source import Table
from coterie.errors import CoterieError, printable
from coterie.sites.contract import Contract
from coterie.sites.members import wrong_name
from coterie.storage.toml import toml_value

__all__ = ["member_names", "started"]

PORT = 7447
MOST_ON_LOOPBACK = 100


def member_names(text: str) -> tuple[str, ...]:
    """Read `4` (site-1 to site-4) or `north,south`."""
    word = text.strip()
    if word.isascii() and word.isdigit():
        count = int(word[:9])
        if not 2 <= count <= MOST_ON_LOOPBACK:
            raise CoterieError(
                f"--federation {word}: 2 to {MOST_ON_LOOPBACK} members, or their names with commas between"
            )
        return tuple(f"site-{i + 1}" for i in range(count))
    names = tuple(name.strip() for name in word.split(",") if name.strip())
    for name in names:
        if wrong := wrong_name(name):
            raise CoterieError(f"--federation: the name {wrong}")
    if len(names) < 2 or len({name.casefold() for name in names}) != len(names):
        raise CoterieError("--federation: write at least two different names, with commas between, or how many members")
    return names


def started(
    names: Sequence[str],
    sources: Sequence[str] = (),
    target: str | None = None,
    client: str | None = None,
    folder: Path = Path(),
) -> tuple[dict[str, str], list[str]]:
    """Return the files to write, by name, and what a person should know about them.

    Args:
        names: the members.
        sources: tables to learn the columns from; none: the working example with embedded data.
        target: of a table: the column that is predicted.
        client: of a table: the column that says whose row it is.
        folder: where the files will lie; paths in them are relative to it.
    """
    if not sources:
        return {"federation.toml": _example(names), **{_file(n): _site(n, None) for n in names}}, []
    if target is None:
        raise CoterieError(f"which column of {sources[0]} is predicted? Name it with --target COLUMN")
    path = sources[0] if len(sources) == 1 else tuple(sources)
    by_site = site_files(path)
    shared = client is not None or len(by_site) > 1  # then no number in the contract is of one site alone
    table = Table(path=path, target=target, client=client, standardise="federated" if shared else "local")
    contract = Contract.of(table.load())
    own = {name: os.path.relpath(by_site[name], folder) for name in names if name in by_site}
    files = {"federation.toml": _for_tables(names, contract), "columns.json": contract.to_json()}
    return files | {_file(name): _site(name, own.get(name, f"{name}.csv")) for name in names}, _notes(contract, shared)


def _notes(contract: Contract, shared: bool) -> list[str]:
    levels = [column.name for column in contract.preparation.columns if column.kind == "words"]
    said = ["columns.json goes to every member: read it before you pass it on"]
    if levels:
        said.append(f"it lists the words in {', '.join(map(repr, levels[:5]))}{', ...' * (len(levels) > 5)}")
    if shared:
        said.append("it has mean, deviation and median of each number over all the rows that were read")
    else:
        said.append("it has no statistics of numbers: each site standardises with those of its own training rows")
    if contract.preparation.target.kind == "regression":
        said.append(f"it has mean and deviation of {contract.preparation.target.name!r}")
    return said


def _file(name: str) -> str:
    return f"{name}.site.toml"


HEAD = """\
# A federation of coterie: the same file at every site, to the letter. Members start only if their files are equal.
#
#     coterie check federation.toml                              what is wrong, before anything starts
#     coterie disclose federation.toml                           what leaves each site, on one page
#     coterie run federation.toml                                the same as a simulation, where it names the data
#     coterie peers federation.toml --local                      all members as processes of this machine
#     coterie join federation.toml --site NAME.site.toml         at each site

format = 1

[federation]
name = {name}
hub = "none"                # no server: members average among themselves; or the name of a member that does it
deadline = 60.0             # seconds that a round waits for messages; who is late is absent for that round
start_deadline = 600.0      # seconds that a member waits for the others to start
# seeds = [{seed}]          # members to connect to first, before the others
"""

RUN = """
# From here on exactly as for `coterie run`; `coterie show NAME` lists the settings of a method, a model or a graph.
[model]
name = "mlp"
hidden = [32]
# personal = ["layers.1"]   # parts of the model that never leave a site (coterie show mlp)

[method]
name = "gossip-sgd"         # coterie list methods
lr = 0.1

[graph]
name = "ring"               # who hears whom: coterie list graphs

[run]
rounds = 20
seed = 0
mode = "exact"              # a simulation then gives the same numbers as the peers, to the last bit
"""


def _example(names: Sequence[str]) -> str:
    lines = [HEAD.format(name=toml_value("example"), seed=toml_value(names[0]))]
    for i, name in enumerate(names):
        lines += ["[[members]]", f"name = {toml_value(name)}", f'address = "127.0.0.1:{PORT + i}"', ""]
    lines += [
        "# For trying out: every member loads all of these data and takes its own part. Real sites have their own"
    ]
    lines += ["# tables: coterie init FILE --target COLUMN --federation NAME,NAME,..."]
    lines += [
        "[data]",
        'name = "digits"',
        "",
        "[partition]",
        'name = "dirichlet"         # unequal shares of the ten digits',
    ]
    return "\n".join(lines) + "\n" + RUN


def _for_tables(names: Sequence[str], contract: Contract) -> str:
    head = HEAD.format(name=toml_value("federation"), seed=toml_value(names[0]))
    lines = [head + 'columns = "columns.json"    # how each site\'s table becomes inputs', ""]
    lines += ["# The name is also the common name of the member's certificate (coterie keys issue NAME --host HOST)."]
    for name in names:
        host = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
        lines += ["[[members]]", f"name = {toml_value(name)}"]
        lines += [
            f'address = "{host}.example.org:{PORT}"',
            "# reachable = false         # it only opens connections",
            "",
        ]
    lines += [printable(f"# {contract.preparation.target.why}")]
    lines += ["[partition]", "test = 0.2                  # share of a site's own rows for testing", "validation = 0.1"]
    return "\n".join(lines) + "\n" + RUN


def _site(name: str, path: str | None) -> str:
    lines = [f"# The own file of {name}: it stays there, as do the data and the private key.", "format = 1", ""]
    lines += ["[site]", f"name = {toml_value(name)}"]
    lines += ['# listen = "0.0.0.0:7447"   # default: the address in federation.toml', ""]
    files: Mapping[str, str] = {"key": f"keys/{name}.key", "certificate": f"keys/{name}.crt", "ca": "keys/ca.crt"}
    lines += [
        "# coterie keys init; coterie keys issue NAME --host HOST. `coterie peers --local` makes its own.",
        "[tls]",
    ]
    lines += [f"{key} = {toml_value(value)}" for key, value in files.items()]
    if path is not None:
        lines += ["", "[data]", f"path = {toml_value(path)}"]
    lines += ["", "# What this site takes part in: it can only narrow what federation.toml says.", "[limits]"]
    lines += ['# methods = ["gossip-sgd"]', '# receivers = ["NAME"]       # who may get messages of this site']
    lines += ["# rounds = 100", "training_rows = 20"]
    return "\n".join(lines) + "\n"
