from __future__ import annotations

import collections
import datetime as dt
import decimal
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.pickled import Named, read_pickle, write_pickle
from connectors.serialized import Made

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=300)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)


@given(VALUES, st.sampled_from([3, 4, 5]))
def test_plain_data_is_read_as_python_reads_it(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol=protocol)) == value


def test_values_that_are_there_twice_are_read_twice() -> None:
    part = ["again", 1.5]
    assert read_pickle(pickle.dumps({"a": part, "b": [part, part]})) == {"a": part, "b": [part, part]}


@given(VALUES | st.sets(st.text()))
def test_what_is_written_is_read_by_python_too(value: Any) -> None:
    written = write_pickle(value)
    assert read_pickle(written) == value
    assert pickle.loads(written) == value  # noqa: S301 -- our own bytes


class Memory:
    """As an application has it: no methods for pickling."""

    def __init__(self, text: str, near: Memory | None = None) -> None:
        self.text = text
        self.near = near


def test_an_object_is_written_back_with_what_was_changed_in_it() -> None:
    read = read_pickle(pickle.dumps(Memory("I moved", Memory("and stayed"))))
    read.content["state"]["text"] = "changed"
    again = pickle.loads(write_pickle(read))  # noqa: S301 -- our own bytes
    assert (type(again), again.text, again.near.text) == (Memory, "changed", "and stayed")


@pytest.mark.parametrize("value", [object(), {1: complex(1, 2)}, [Named("a.b")]])
def test_what_no_pickle_gave_us_is_not_written(value: object) -> None:
    with pytest.raises(ValueError, match="only what was read"):
        write_pickle([value])


def test_classes_stay_names() -> None:
    assert read_pickle(pickle.dumps(collections.OrderedDict)) == Named("collections.OrderedDict")
    made = read_pickle(pickle.dumps(decimal.Decimal("1.5")))
    assert made == Made(name="decimal.Decimal", content={"arguments": [("1.5",)]})
    moment = read_pickle(pickle.dumps(dt.datetime(2026, 1, 5, 12)))  # noqa: DTZ001 -- as an application has it
    assert isinstance(moment, Made)
    assert moment.name == "datetime.datetime"


class Trap:
    sprung = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (setattr, (Trap, "sprung", True))


def test_a_call_is_never_made() -> None:
    for protocol in range(2, 6):
        read = read_pickle(pickle.dumps([Trap()], protocol=protocol))
        assert isinstance(read[0], Made)
        assert read[0].name == "builtins.setattr" or protocol < 3
    assert Trap.sprung is False
    pickle.loads(pickle.dumps(Trap()))  # noqa: S301 -- our own bytes, to show that the trap works
    assert Trap.sprung is True


@given(st.binary(max_size=200))
def test_anything_else_is_a_value_error(data: bytes) -> None:
    try:
        read_pickle(data)
    except ValueError:
        return


def test_a_stream_cut_anywhere_is_a_value_error() -> None:
    whole = pickle.dumps({"vector": [0.5, 0.25, 0.125], "payload": {"text": "I moved"}})
    for end in range(len(whole)):
        with pytest.raises(ValueError, match="no plain form"):
            read_pickle(whole[:end])
