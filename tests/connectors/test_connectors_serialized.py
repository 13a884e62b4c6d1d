from __future__ import annotations

import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from connectors.serialized import Made, plain, shown, texts

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=JSON)
def test_what_was_written_is_read_back_from_msgpack_and_json(value: Any) -> None:
    assert plain(msgspec.msgpack.encode(value), "msgpack") == value
    if isinstance(value, dict | list):
        assert plain(json.dumps(value).encode()) == value
        assert plain(json.dumps(value), "json") == value
    json.dumps(shown(value))


@given(data=st.binary(max_size=300), kind=st.sampled_from(["msgpack", "json", "pickle", None]))
def test_any_bytes_are_read_without_an_error(data: bytes, kind: str | None) -> None:
    read = plain(data, kind)
    assert list(texts(read)) is not None
    json.dumps(shown(read))


def test_a_message_of_the_framework_is_read_without_building_it() -> None:
    kind, data = JsonPlusSerializer().dumps_typed({"messages": [HumanMessage(content="I moved to Blackthorn Row")]})
    read = plain(data, kind)
    (message,) = read["messages"]
    assert isinstance(message, Made)
    assert message.name == "langchain_core.messages.human.HumanMessage"
    assert "I moved to Blackthorn Row" in texts(read)
    assert not any("langchain" in str(each) for each in texts(read))
    assert "I moved to Blackthorn Row" in json.dumps(shown(read))


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


def test_a_pickle_stays_bytes_and_its_open_texts_are_found() -> None:
    data = pickle.dumps({"said": "I moved to Blackthorn Row", "bomb": Bomb()})
    assert plain(data, "pickle") == data
    assert any(b"I moved to Blackthorn Row" in each for each in texts(data) if isinstance(each, bytes))


@pytest.mark.parametrize("depth", [50, 500, 5000, 100_000])
def test_deep_nesting_is_survived(depth: int) -> None:
    for data in (b"[" * depth + b"]" * depth, b"\x91" * depth + b"\x90"):
        read = plain(data, "msgpack" if data[:1] == b"\x91" else "json")
        assert list(texts(read)) is not None
        json.dumps(shown(read))
    nested: Any = b"the innermost text"
    for _ in range(min(depth, 500)):
        nested = msgspec.msgpack.Ext(0, msgspec.msgpack.encode(nested))
    assert list(texts(plain(msgspec.msgpack.encode(nested), "msgpack"))) != []
