"""Real processes: killed at random moments, two at once, on a full disk; the end is the same to the bit."""

import random
import signal

import pytest

from support.killing import ROUNDS, Moment, Run, differences, rounds_of, wait_for

CASE = "gossip-sgd"  # `make soak` kills the other cases, too


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, cache):
    """The run as it ends when nobody disturbs it."""
    run = Run(CASE, tmp_path_factory.mktemp(CASE), cache)
    assert rounds_of(run.finish())[-1] == ROUNDS
    return run


def assert_same(run, reference):
    expected = reference.contents()
    assert {"metrics.jsonl", "ledger.blocks", "models/00005-client-5.safetensors"} < expected.keys()
    assert differences(run.contents(), expected) == []


@pytest.mark.soak
def test_killed_several_times(tmp_path, cache, uninterrupted):
    run, moments = Run(CASE, tmp_path, cache), random.Random(1)
    assert run.kill(Moment(0, moments.uniform(0, 1)))  # while it starts
    assert run.kill(Moment(moments.randint(2, 15), moments.uniform(0, 0.03)))
    assert run.kill(Moment(moments.randint(20, 30), moments.uniform(0, 0.03)))
    assert rounds_of(run.finish())[0] >= 20  # it went on from a checkpoint
    assert_same(run, uninterrupted)


def test_two_at_once_then_killed_then_a_corrupt_checkpoint(tmp_path, cache, uninterrupted):
    run = Run(CASE, tmp_path, cache)
    with run.start() as first:
        wait_for(first, 3)
        first.send_signal(signal.SIGSTOP)
        with run.start() as second:
            _, errors = second.communicate()
        first.kill()
        first.communicate()
    advice = "wait until that has ended, or choose another --out"
    assert (second.returncode, errors) == (2, f"coterie: {run.folder} is in use by another process; {advice}\n")
    assert run.kill(Moment(10, 0.01))
    newest = max((run.folder / "checkpoints").glob("step-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    shown = run.finish()
    assert f"note: {newest.stem} is corrupt (digest differs): continuing from step-" in shown
    assert 10 <= rounds_of(shown)[0] <= int(newest.stem[5:])
    assert_same(run, uninterrupted)


@pytest.mark.soak
def test_a_full_disk_stops_the_run_which_can_go_on_later(tmp_path, cache, uninterrupted):
    reference = uninterrupted
    checkpoint, metrics = (
        (reference.folder / name).stat().st_size for name in ("checkpoints/step-00000060.safetensors", "metrics.jsonl")
    )
    assert checkpoint < 0.8 * metrics  # so that metrics.jsonl is what grows too large, late in the run
    run = Run(CASE, tmp_path, cache)
    with run.start(limit=(checkpoint + metrics) // 2) as process:
        _, errors = process.communicate()
    assert process.returncode == 2
    assert errors.startswith("coterie: a file is too large while writing ")
    assert errors.endswith(f"`coterie resume {run.folder}` continues\n")
    assert errors.count("\n") == 1
    assert rounds_of(run.finish())[0] > 30
    assert_same(run, reference)
