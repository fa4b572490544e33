"""A comparison in which every text that can come from data or from a folder is an attack on the page."""

from pathlib import Path

from support.answer_cases import make_answer

HOSTILE = (
    "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'><svg onload=window.ran=3>"
    '"\' onmouseover=window.ran=4 x=\'<style>*{color:red}</style><a href="javascript:window.ran=5">x</a>'
    "<!--]]>&#60;\u2028\u2029\x00\x1b[2J\u202e${window.ran=6}{{7}}"
)


def hostile(value, keep=()):
    """Append the attack to every text in nested values, keys of dicts and numbers apart; `keep` are keys left alone."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, dict):
        return {key: item if key in keep else hostile(item, keep) for key, item in value.items()}
    return [hostile(item, keep) for item in value] if isinstance(value, list | tuple) else value


def make_hostile():
    """Return the comparison; only the words that the product itself looks up (kinds, roles, scores) are spared."""
    answer = make_answer(names=[f"{HOSTILE}{i}" for i in range(12)], class_names=(HOSTILE, "no"), known=True)
    answer.clients |= hostile({key: answer.clients[key] for key in ("about", "groups", "intake")})
    answer.clients["groups"] = [f"{group}{HOSTILE}" for group in answer.clients["groups"]]
    answer.failures = {HOSTILE: HOSTILE}
    answer.command, answer.folder = HOSTILE, Path(HOSTILE.replace("\x00", ""))
    for results in answer.results.values():
        for result in results:
            result.device = HOSTILE
            result.config = hostile(result.config, keep=("name",)) | {"note": {HOSTILE: HOSTILE}}
            result.config["run"]["seed"] = f"{result.config['run']['seed']}{HOSTILE}"
    renamed = {"ditto": f"ditto{HOSTILE}", "scool-sbm": f"scool-sbm{HOSTILE}"}
    answer.results = {renamed.get(label, label): results for label, results in answer.results.items()}
    answer.tuning = {renamed.get(label, label): records for label, records in answer.tuning.items()}
    for records in answer.tuning.values():
        for record in records:
            record["values"] = {f"{name}{HOSTILE}": tried for name, tried in record["values"].items()}
            record["chosen"] = {f"{name}{HOSTILE}": value for name, value in record["chosen"].items()}
    return answer
