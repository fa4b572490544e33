"""A spec refuses what is wrong with one sentence that names the field and the nearest right answer."""

import dataclasses
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.methods import FedAvg
from coterie.spec import LARGEST, Field, build, describe, nearest, param, spec, to_dict


@spec
class Cake:
    """A spec with a field of every type."""

    flour: float = param(0.5, "kilograms", above=0)
    eggs: int = param(3, "how many", at_least=0, at_most=12)
    share: float = param(0.25, "of the sugar", at_least=0, below=1)
    layers: tuple[int, ...] = param((2, 1), "from below")
    topping: Literal["cream", "fruit"] = param("cream", "what is on top")
    vegan: bool = param(False, "no eggs")
    name: str | None = param(None, "for the card")
    anything: Any = param(None, "what you like")


@spec
class Card:
    """A spec that needs something."""

    text: str = param(help="what it says")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"egs": 2}, "unknown key cake.egs; did you mean eggs?"),
        (
            {"zzz": 2},
            "unknown key cake.zzz; known: flour, eggs, share, layers, topping, vegan, name, anything",
        ),
        ({"eggs": "three"}, "cake.eggs must be integer, not 'three'"),
        ({"eggs": 2.5}, "cake.eggs must be integer, not 2.5"),
        ({"eggs": True}, "cake.eggs must be integer, not True"),
        ({"eggs": -1}, "cake.eggs must be at least 0, not -1"),
        ({"eggs": 13}, "cake.eggs must be at most 12, not 13"),
        ({"flour": 0}, "cake.flour must be greater than 0, not 0"),
        ({"flour": float("nan")}, "cake.flour must be a number, not nan"),
        ({"flour": "0.5"}, "cake.flour must be number, not '0.5'"),
        ({"share": 1}, "cake.share must be less than 1, not 1"),
        ({"topping": "creme"}, "cake.topping must be one of cream, fruit, not 'creme'; did you mean cream?"),
        ({"layers": [1, "two"]}, "cake.layers must be integer, not 'two'"),
        ({"vegan": 1}, "cake.vegan must be true or false, not 1"),
        ({"name": 7}, "cake.name must be text or none, not 7"),
    ],
)
def test_a_wrong_setting_gets_one_sentence(options, sentence):
    with pytest.raises(CoterieError) as error:
        build(Cake, options, "cake")
    assert str(error.value) == sentence


def test_a_missing_required_setting_is_named():
    with pytest.raises(CoterieError, match=r"^card\.text is required: what it says$"):
        build(Card, {}, "card")
    assert build(Card, {"text": "hello"}, "card").text == "hello"


def test_values_are_converted_to_the_annotated_type():
    cake = Cake(flour=1, layers=[3, 2], name="Sacher", anything={"x": 1})
    assert cake.flour == 1.0
    assert isinstance(cake.flour, float)
    assert cake.layers == (3, 2)
    assert Cake(layers=4).layers == (4,)
    assert cake.anything == {"x": 1}
    assert hash(Cake()) == hash(Cake())


def test_a_spec_is_frozen_and_takes_keywords_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Cake().eggs = 4
    with pytest.raises(TypeError):
        Cake(1.0)
    with pytest.raises(CoterieError, match="eggs must be at most 12"):
        dataclasses.replace(Cake(), eggs=40)


@given(
    st.builds(
        Cake,
        flour=st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False),
        eggs=st.integers(0, 12),
        share=st.floats(0, 1, exclude_max=True),
        layers=st.lists(st.integers(-LARGEST, LARGEST), max_size=4).map(tuple),
        topping=st.sampled_from(["cream", "fruit"]),
        vegan=st.booleans(),
        name=st.none() | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    )
)
def test_a_spec_can_be_written_and_read_back(cake):
    written = to_dict(cake)
    assert None not in written.values()  # TOML has no null
    assert not any(isinstance(value, tuple) for value in written.values())
    assert build(Cake, written, "cake") == cake


def test_a_spec_describes_itself():
    fields = describe(Cake)
    assert fields[0] == Field("flour", "number", 0.5, "kilograms")
    assert [field.type for field in fields] == [
        "number",
        "integer",
        "number",
        "list of integer",
        "cream|fruit",
        "true or false",
        "text or none",
        "Any",
    ]
    assert describe(Card) == [Field("text", "text", "required", "what it says")]


def test_the_nearest_word():
    assert nearest("momentun", ["lr", "momentum"]) == "; did you mean momentum?"
    assert nearest("qqq", ["lr", "momentum"]) == ""


def test_a_methods_settings_include_those_it_shares_with_others():
    names = [field.name for field in describe(FedAvg)]
    assert names[:6] == ["lr", "momentum", "weight_decay", "batch_size", "epochs", "steps"]
    assert names[6:9] == ["decay", "decay_after", "decay_every"]
    assert names[9:] == ["local_optimiser", "schedule", "schedule_rounds", "participation"]
    with pytest.raises(CoterieError, match=r"^unknown key method.learning_rate; .*"):
        build(FedAvg, {"learning_rate": 0.1}, "method")
    with pytest.raises(CoterieError, match=r"^method.participation must be greater than 0, not 0$"):
        build(FedAvg, {"participation": 0}, "method")
