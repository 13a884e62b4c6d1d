"""The HTTP client: problems raised with their fields, artifacts in batches, nothing asked twice that may act."""

from datetime import UTC, datetime
from typing import Any

import pytest

from muniment import ApiProblem, Client, derive
from muniment.errors import TransportError
from muniment.registry import problem_of
from muniment.transport import Answer, Transport


def test_a_problem_is_raised_with_its_fields_and_without_the_token(fault_server: Any) -> None:
    with Client(fault_server.url, "secret-token") as client, pytest.raises(ApiProblem) as caught:
        client.request("GET", "/v1/artifacts/none", purpose="dispute;case=1")
    assert (caught.value.status, caught.value.type) == (404, "/problems/not-found")
    assert caught.value.title == "Unknown in this tenant"
    assert "secret-token" not in str(caught.value)


def test_an_answer_that_is_no_problem_document_still_raises_one() -> None:
    problem = problem_of(Answer(status=502, headers={"retry-after": "3"}, body=b"<html>"))
    assert (problem.status, problem.type, problem.retry_after) == (502, "about:blank", 3.0)


def test_artifacts_go_in_calls_of_five_thousand_and_results_stay_in_order(fault_server: Any) -> None:
    made = [derive(data_class="summary", store="s", locator={"path": str(n)}) for n in range(7001)]
    with Client(fault_server.url, "t") as client:
        assert len(client.artifacts(made)) == 7001
    assert len(fault_server.bodies) == 2


def test_a_memorys_name_names_nothing_else(fault_server: Any) -> None:
    # It may be what a model wrote: `…:forget#` made a confirmation a «forget this».
    with Client(fault_server.url, "t") as client, pytest.raises(ApiProblem):
        client.confirm_memory("../list:forget#", source_ref="turn 3")
    assert fault_server.paths[-1] == "/v1/memory/..%2Flist%3Aforget%23:confirm"


def test_pages_are_followed_to_their_end(fault_server: Any) -> None:
    with Client(fault_server.url, "t") as client:
        assert list(client.pages("/v1/list")) == [1, 2, 1, 2]


def test_a_lost_answer_is_asked_again_only_where_nothing_changes(fault_server: Any) -> None:
    with Client(fault_server.url, "t") as client:
        fault_server.faults.append("reset")
        assert client.request("GET", "/v1/list?cursor=x")["items"] == [1, 2]
        fault_server.faults.append("reset")
        with pytest.raises(TransportError):
            client.artifacts([derive(data_class="a", store="b", locator={})])
        assert fault_server.bodies == []


def test_a_derivation_has_the_members_given_and_no_others() -> None:
    made = derive(
        data_class="summary",
        store="vectors",
        locator={"collection": "mem", "id": "42"},
        sources=["art_1", {"store": "files", "locator": {"path": "a"}}],
        subjects=["user:1"],
        activity="summarise",
        observed_at=datetime(2026, 1, 1, tzinfo=UTC),
        confidence=0.9,
    )
    assert made == {
        "data_class": "summary",
        "store": "vectors",
        "locator": {"collection": "mem", "id": "42"},
        "sources": ["art_1", {"store": "files", "locator": {"path": "a"}}],
        "subjects": ["user:1"],
        "activity": {"kind": "summarise"},
        "observed_at": "2026-01-01T00:00:00.000000Z",
        "confidence": 0.9,
    }
    assert derive(data_class="a", store="b", locator={}) == {"data_class": "a", "store": "b", "locator": {}}


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://host", "http://", ""])
def test_an_address_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        Transport(url, None)
