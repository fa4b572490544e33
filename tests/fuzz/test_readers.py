"""Damaged files and messages: every reader returns, or refuses in one sentence. `make soak` does so for an hour."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fuzzing import FULL, Guard, damaged
from support.readers import data_readers, folder_readers, message_readers, site_readers, trained

NUMBER = st.integers(0, FULL - 1)
EDITS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=6)
SAME = {"derandomize": True, "database": None, "deadline": None}  # a sample that is the same every time


@pytest.fixture(scope="module")
def guard(tmp_path_factory):
    before, folder = os.getcwd(), tmp_path_factory.mktemp("damaged")
    os.chdir(folder)
    yield Guard(folder)
    os.chdir(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_readers(trained(tmp_path_factory.mktemp("trained")))


@pytest.mark.parametrize("reader", [*data_readers(), *site_readers(), *message_readers()], ids=str)
def test_files_and_messages(reader, guard):
    for seed in reader.seeds:
        assert guard.failure(reader, reader.wrap(seed)) is None

    @settings(max_examples=50, **SAME)
    @given(st.sampled_from(reader.seeds), EDITS)
    def check(seed, edits):
        assert guard.failure(reader, reader.wrap(damaged(seed, edits))) is None

    check()


def test_folders(folder, guard):
    for reader in folder:
        assert guard.failure(reader, reader.wrap(reader.seeds[0])) is None

    @settings(max_examples=150, **SAME)
    @given(st.sampled_from(folder), EDITS)
    def check(reader, edits):
        assert guard.failure(reader, reader.wrap(damaged(reader.seeds[0], edits))) is None

    check()
