"""What leaves each site, for exactly this configuration: the page that an ethics board reads.

The words about a message come from its method (`methods/sends.py`); its arrays, receivers and bytes from tracing the
run (`outline.py`). `markdown` and `coterie.pages.disclosure` write the same blocks.
"""

import dataclasses
from collections.abc import Sequence

from coterie import __version__
from coterie.methods.sends import Sending
from coterie.sites.federation import FederationFile
from coterie.sites.outline import Outline
from coterie.sites.tracing import Sent

__all__ = ["Block", "Section", "disclosure", "markdown", "title"]

MANY = 30  # members, or arrays of a message, from which only some are listed

FROM_HUB = {
    "mean": "the weighted mean of what it got",
    "centres": "the means of the groups, and of everyone",
    "hub": "what the hub computed for this member from everyone's messages",
    "most": "the largest of the numbers that it got",
    "share": "everyone's numbers",
}
RECEIPT = Sending("the receipt of a message, without content", "That the message arrived.")
KEPT = Sending("which neighbours it goes on with", "With whom it cooperates.")
UNDECLARED = Sending("not declared by the method", "Unknown: the method does not say what it sends.")


@dataclasses.dataclass(frozen=True)
class Block:
    """A part of a section: paragraphs, points, or a table with heads."""

    lines: Sequence[str] = ()
    points: Sequence[str] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page."""

    title: str
    blocks: Sequence[Block]


def title(federation: FederationFile) -> str:
    """Return the title of the page."""
    return f"What leaves each site: {federation.settings.name}"


def disclosure(federation: FederationFile) -> list[Section]:
    """Return the page for a federation."""
    outline = Outline.of(federation)
    return [
        Section("In short", [_summary(federation, outline)]),
        Section("What is sent", [_messages(outline)] if outline.messages else [Block(["Nothing is sent."])]),
        Section("Who sends to whom, and how much", [_members(federation, outline)]),
        Section("What stays at each site", [Block(points=_stays(outline))]),
        Section("What is known to leak", [_leaks(federation, outline)]),
        Section("This configuration", [_configuration(federation)]),
    ]


def _summary(federation: FederationFile, outline: Outline) -> Block:
    run, members = outline.experiment, len(federation.members)
    data = "No row of any table is sent."
    if _rows_leave(outline):
        data = "THE ROWS THEMSELVES ARE SENT TO EVERY MEMBER."
    where = "There is no server: members send to each other directly."
    if federation.hub is not None:
        where = f"The member {federation.hub} computes averages for the others; what they send it, it can read."
    return Block(
        [
            f"{members} members train personal models together with the method {run.method.name}, in "
            f"{run.run.rounds:,} rounds. {data} {where}",
            "Messages are encrypted on the way (TLS 1.3 or 1.2, both ends identified by certificates). They are not "
            "encrypted for their receiver: who gets a message can read it. No differential privacy is applied, and no "
            "secure aggregation.",
        ]
        if federation.settings.tls
        else [f"{members} members on one machine, without encryption, for trying out. {data}"]
    )


def _rows_leave(outline: Outline) -> bool:
    return outline.experiment.method.spec.role == "pooled"


def _messages(outline: Outline) -> Block:
    heads = ["when", "message", "to", "numbers in it", "bytes of each", "times per round"]
    return Block(heads=heads, rows=[_message(outline, sent) for sent in outline.messages])


def _message(outline: Outline, sent: Sent) -> list[str]:
    staged = len({other.first for other in outline.messages if other.phase == "round"}) > 1
    when = {
        "start": "once, before the first round",
        "round": f"in every round from {sent.first} on" if staged else "in every round",
        "stage": f"once, before round {sent.first}",
    }[sent.phase]
    size = f"{'at most ' * sent.coded}{sent.size:,}"
    often = "" if sent.phase != "round" else f"{'up to ' * sent.sometimes}{sent.times:,}"
    return [when, _what(outline, sent), _receivers(outline, sent), _numbers(sent), size, often]


def _numbers(sent: Sent) -> str:
    """Say how many numbers a message has, of which type and in which shapes."""
    if not sent.arrays:
        return "none"
    shapes = [" x ".join(map(str, shape)) or "1" for shape, _ in sent.arrays]
    types = ", ".join(dict.fromkeys(dtype for _, dtype in sent.arrays))
    return f"{sent.numbers:,} ({types}): {', '.join(shapes[:MANY])}{', ...' * (len(shapes) > MANY)}"


def _sending(outline: Outline, sent: Sent) -> Sending:
    """Return what the method says about a message."""
    if sent.verb == "receipt":
        return RECEIPT
    if sent.phase == "stage":
        return KEPT
    return outline.experiment.method.spec.sends.get(sent.verb, UNDECLARED)


def _what(outline: Outline, sent: Sent) -> str:
    if sent.way == "everyone":
        return FROM_HUB[sent.verb]
    what = _sending(outline, sent).what
    if sent.way == "partner":
        return f"{what}: times its weight, and added to what came in the steps before (step {sent.step + 1} of the sum)"
    return what


def _receivers(outline: Outline, sent: Sent) -> str:
    hub = outline.federation.hub
    if sent.way == "hub":
        return "every other member" if hub is None else f"{hub}, the hub"
    if sent.way == "everyone":
        return "nobody: every member computes it itself" if hub is None else f"from {hub} to every other member"
    if sent.way == "partner":
        return "one member, another one in each step"
    return {"listeners": "members that hear it", "neighbours": "members that it hears"}[sent.way]


def _members(federation: FederationFile, outline: Outline) -> Block:
    heads = ["member", "sends to", "bytes per round, at most", "bytes in all, at most"]
    pairs, rows = outline.pairs(), []
    for number, name in enumerate(federation.names[:MANY]):
        to = [federation.names[j] for j in sorted(j for i, j in pairs if i == number)]
        listed = ", ".join(to[:10]) + (f" and {len(to) - 10} more" if len(to) > 10 else "")
        sizes = outline.round_bytes(number), outline.total_bytes(number)
        rows.append([name, listed or "nobody", *(f"{size:,}" for size in sizes)])
    lines = [f"The first {MANY} of {len(federation.names)} members."] if len(federation.names) > MANY else []
    lines.append(
        "Beside these, members tell each other their name, the digest of this configuration (and the configuration "
        "itself, where digests differ), versions of the software, the kind of processor, the numbers of the run, the "
        "process and the round, who is absent or not connected, the graph where a method changes it, and receipts."
    )
    return Block(lines=lines, heads=heads, rows=rows)


def _stays(outline: Outline) -> list[str]:
    personal = outline.personal
    stays = [] if _rows_leave(outline) else ["all rows of its table: training, validation and test rows"]
    stays.append("its scores, its checkpoints and its private key")
    if personal:
        stays.append(f"the personal part of its model: {', '.join(personal[:20])}{', ...' * (len(personal) > 20)}")
    else:
        stays.append("no part of the model by name: model.personal can name parts that never leave a site")
    return stays


def _leaks(federation: FederationFile, outline: Outline) -> Block:
    found = {_sending(outline, sent) for sent in outline.messages if sent.way != "everyone"}
    points = [f"{sending.what[:1].upper()}{sending.what[1:]}: {sending.leaks}" for sending in sorted(found, key=str)]
    if federation.contract is not None:
        points.append(
            "The column contract, before the run: names of columns, words in them that have an input of their own, "
            "classes, and the statistics that it lists."
        )
    points.append("That a site takes part, when, and how fast it computes: to every member and to the network between.")
    lines = ["What the literature knows; there may be more. A trained model that is given away leaks in the same way."]
    return Block(lines=lines, points=points)


def _configuration(federation: FederationFile) -> Block:
    rows = [
        ["federation", federation.settings.name],
        ["digest (SHA-256)", federation.hash],
        ["column contract", "none" if federation.contract is None else federation.contract.digest],
        ["software", f"coterie {__version__}"],
    ]
    line = "A site starts only together with members whose files have the same digest."
    return Block([line], heads=["", ""], rows=rows)


def markdown(heading: str, sections: Sequence[Section]) -> str:
    """Return the page as Markdown."""
    out = [f"# {_plain(heading)}", ""]
    for section in sections:
        out += [f"## {section.title}", ""]
        for block in section.blocks:
            for line in block.lines:
                out += [_plain(line), ""]
            out += [f"- {_plain(point)}" for point in block.points]
            if block.heads:
                out += ["| " + " | ".join(block.heads) + " |", "|" + "---|" * len(block.heads)]
                out += ["| " + " | ".join(map(_plain, row)) + " |" for row in block.rows]
            out.append("")
    return "\n".join(out)


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is: names of columns and parameters may hold anything."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_{}[]<>|#" else letter for letter in text)
    return " ".join(escaped.split())
