"""The folders that the sites of a run would have written, cut from the folder of its simulation."""

import numpy as np

from coterie.experiment.folder import RunFolder, model_file
from coterie.experiment.members import Members
from coterie.peers.line import Delivery
from coterie.sites.deliveries import DeliveryLog

__all__ = ["write_sites"]


def write_sites(run, out, away=None, unfinished=()):
    """Write a folder for each client of a run in which everything arrived; returns them in order.

    Args:
        run: the folder of the simulation.
        out: where to write.
        away: rounds that a client's site lacks, by client.
        unfinished: clients whose site has not come to the end.
    """
    whole = RunFolder(run)
    names = tuple(whole.clients()["names"])
    folders = []
    for i, name in enumerate(names):
        folder, gone = RunFolder(out / name), set((away or {}).get(i, ()))
        folder.path.mkdir(parents=True)
        folder.begin(whole.config(), _about(whole.clients(), i), members=Members(names, (i,), 7))
        for row in whole.lines("metrics.jsonl"):
            if row["round"] not in gone:
                folder.append("metrics.jsonl", {k: [v[i]] if isinstance(v, list) else v for k, v in row.items()})
        ledger = whole.ledger()
        for block in ledger.blocks:
            keep = ~np.isin(block["rounds"], [*gone])
            rows = {k: v[keep][:, i : i + 1] for k, v in block.items() if k not in ("rounds", "neighbours")}
            rows |= {"rounds": block["rounds"][keep], "neighbours": block.get("neighbours", ledger.neighbours)[[i]]}
            folder.save_arrays("ledger", int(block["rounds"][-1]), rows)
        for number, tables in whole.graphs().items():
            if number not in gone:
                folder.save_arrays("graph", number, {k: v[[i]] for k, v in tables.items()})
        _log(folder, i, ledger.neighbours[[i]], whole.summary()["round"], gone)
        if i not in unfinished:
            scores, start = whole.scores(), whole.scores()["counts"][:i].sum()
            end = start + scores["counts"][i]
            own = {k: v[start:end] if k.startswith("each.") else v[[i]] for k, v in scores.items()}
            folder.save_scores(own)
            folder.save_model(model_file(0, name), (whole.path / "models" / model_file(i, name)).read_bytes())
            folder.finish(whole.summary())
        folders.append(folder.path)
    return folders


def _about(clients, i):
    about = dict(clients) | {"names": [clients["names"][i]], "label_counts": [clients["label_counts"][i]]}
    about["groups"] = None if clients["groups"] is None else [clients["groups"][i]]
    about["sizes"] = {part: [counts[i]] for part, counts in clients["sizes"].items()}
    return about | {"digest": f"data of {i}"}


def _log(folder, i, neighbours, rounds, gone):
    log = DeliveryLog(folder.path, [i], hub=False)
    for number in range(rounds + 1):
        if number not in gone:
            log.round(number, [Delivery(number, edges=neighbours != i)] if number else [])
