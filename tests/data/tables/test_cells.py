"""Cells as text: what is a number, a date, a missing value."""

import numpy as np
import pandas as pd
import pytest

from coterie.data.tables.cells import cells_of, is_empty, read_dates, read_numbers


@pytest.mark.parametrize(
    ("words", "values", "stray", "decimal"),
    [
        (["1", "-2.5", "1e3", " 4 ", "+5"], [1, -2.5, 1000, 4, 5], [], "."),
        (["1,5", "-0,25", "1.234,5", "3"], [1.5, -0.25, 1234.5, 3], [], ","),
        (["1,234", "2,000,000", "12,345.5"], [1234, 2e6, 12345.5], [], "."),
        (["1", "007", "abc", "1_000", "0x1F", "True"], [1], ["007", "abc", "1_000", "0x1F", "True"], "."),
        (["", "NA", "nan", "None", "?", "-", "7"], [7], [], "."),
    ],
)
def test_numbers(words, values, stray, decimal):
    read = read_numbers(words)
    assert read.values[~np.isnan(read.values)].tolist() == values
    assert np.array(words)[read.stray].tolist() == stray
    assert read.decimal == decimal


def test_a_comma_that_may_separate_thousands_is_pointed_out():
    assert read_numbers(["1,234", "5"]).ambiguous
    assert not read_numbers(["1,234", "5"], decimal=",").ambiguous
    assert read_numbers(["1,234", "5"], decimal=",").values.tolist() == [1.234, 5]


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (["2021-02-03", "1999-12-31"], "ISO8601"),
        (["2021-02-03 14:30", "1999-12-31 00:00"], "ISO8601"),
        (["03.02.2021", "31.12.1999"], "%d.%m.%Y"),
        (["02/03/2021", "12/31/1999"], "%m/%d/%Y"),
        (["3 Feb 2021", "31 Dec 1999"], "%d %b %Y"),
        (["03feb2021", "31dec1999"], "%d%b%Y"),
    ],
)
def test_dates(words, form):
    times, name, rival = read_dates(words)
    assert (name, rival) == (form, "")
    assert times.astype("datetime64[D]").astype(str).tolist() == ["2021-02-03", "1999-12-31"]


def test_no_dates_and_ambiguous_dates():
    for words in (["red", "blue"], ["1", "2"], ["2021", "2022"], ["12.5", "13.5"], ["a-1", "b-2"]):
        assert read_dates(words)[1] == "", words
    assert read_dates(["03/04/2021", "05/06/2021"])[1:] == ("%d/%m/%Y", "%m/%d/%Y")


def test_years_that_nanoseconds_cannot_count_do_not_fit():
    words = np.array(["2024-01-01"] * 18 + ["9999-12-31", "0001-01-01"], object)
    times, form, _ = read_dates(words)
    assert form
    assert np.isnat(times).tolist() == [False] * 18 + [True] * 2


def test_text_is_kept_as_written():
    assert sorted(cells_of(pd.Series(["007", "07", "7", "NA", " 7"])).words) == [" 7", "007", "07", "7", "NA"]
    gaps = cells_of(pd.Series([3.0, np.nan, 5.0]))  # whole numbers that pandas made floats of
    assert gaps.text.tolist() == ["3", "", "5"]
    assert cells_of(pd.Series([12345678901234567, 2])).text.tolist() == ["12345678901234567", "2"]
    assert cells_of(pd.Series([True, False])).text.tolist() == ["True", "False"]
    assert is_empty(["", " ", "NA", "none", "x"]).tolist() == [True, True, True, False, False]
