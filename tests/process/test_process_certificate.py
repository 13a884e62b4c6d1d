"""The certificate and the letter over HTTP and from the command line, as the desk and the person get them."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from erasure.execute import destroy_due_keks
from erasure.footprint import end_footprints
from erasure.parts import Tenant
from erasure.worker import finish
from muniment.errors import ApiProblem
from tests import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
SUBJECT = "email:grace@example.org"
CONTROLLER = {
    "name": "Beispiel GmbH", "contact": "privacy@beispiel.example", "complaint_body": "BayLDA",
    "timezone": "Europe/Berlin", "jurisdiction": "DE-BY",
}  # fmt: skip


def erased(desk: Any) -> str:
    """A person with one file, taken through the desk to the interim certificate."""
    from tests.process.conftest import wait_for

    desk.call("platform", "PUT", "/v1/settings/controller", CONTROLLER)
    folder = desk.running.settings.data.parent / "stores" / desk.tenant
    folder.mkdir(parents=True)
    (folder / "cv.txt").write_text("Grace Hopper, born 9 December 1906")
    desk.call("platform", "PUT", "/v1/stores/cvs", {"kind": "files", "config": {"root": str(folder)}})
    spec = {
        "state": "file", "personal": True, "owner": "team", "description": "files", "legal_basis": "consent",
        "subject_types": ["email"], "retention": {"keep": "P90D", "from": "created", "then": "erase"},
        "erasure": {"on_request": "erase", "required": "L2"},
    }  # fmt: skip
    desk.call("platform", "PUT", "/v1/data-classes/cv", spec)
    made = desk.client("writer").artifacts(
        [{"data_class": "cv", "store": "cvs", "locator": {"path": "cv.txt"}, "subjects": [SUBJECT]}]
    )
    assert made[0]["status"] == "created"
    request = str(ask(desk, SUBJECT)["id"])
    path = f"/v1/requests/{request}"
    plan_hash = desk.call("legal", "GET", f"{path}/plan")["hash"]
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan_hash})
    wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed", 60)
    return request


def ask(desk: Any, subject: str) -> dict[str, Any]:
    made: dict[str, Any] = desk.call(
        "legal", "POST", "/v1/requests",
        {"right": "erasure", "subjects": [subject], "regulation": "gdpr", "jurisdiction": "DE-BY",
         "timezone": "Europe/Berlin", "channel": "e-mail"},
    )  # fmt: skip
    path = f"/v1/requests/{made['id']}"
    check = {"identifier": subject, "method": "login", "evidence": "session of today"}
    desk.call("legal", "POST", f"{path}/verify-identity", check)
    desk.call("legal", "POST", f"{path}/plan")
    return made


def get(desk: Any, principal: str, path: str, accept: str) -> Any:
    return desk.client(principal).send("GET", path, None, {"Accept": accept})


def problem(desk: Any, principal: str, path: str, accept: str = "*/*") -> tuple[int, str]:
    with pytest.raises(ApiProblem) as refused:
        get(desk, principal, path, accept)
    return refused.value.status, str(refused.value.detail)


def command(desk: Any, *arguments: str, principal: str = "legal") -> subprocess.CompletedProcess[str]:
    where = ["--data", str(desk.running.settings.data), "--url", desk.running.url]
    words = (*arguments, *(where if arguments[0] != "verify-report" else []))
    return forked.run(*words, env={**os.environ, "MUNIMENT_TOKEN": desk.tokens[principal]})


def test_a_request_ends_in_papers_that_the_desk_sends_and_the_person_checks(desk: Any, tmp_path: Path) -> None:
    request = erased(desk)
    path = f"/v1/requests/{request}/report"
    report = get(desk, "legal", path, "*/*")
    assert report.headers["content-type"] == "application/json"
    html, pdf = get(desk, "auditor", path, "text/html"), get(desk, "auditor", path, "application/pdf;q=0.9, text/*;q=0")
    assert html.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert "Beispiel GmbH" in html.body.decode()
    assert pdf.body.startswith(b"%PDF-1.7")
    assert pdf.headers["content-type"] == "application/pdf"
    for answer in (report, html, pdf):
        assert answer.headers["content-length"] == str(len(answer.body))
    for paper in (report.body, html.body, pdf.body):
        assert b"grace@" not in paper
        assert b"cv.txt" not in paper
    assert problem(desk, "legal", path, "image/png")[0] == 406
    assert problem(desk, "legal", f"{path}?version=final")[0] == 409
    keys = ["--key", desk.certificate_key, "--log-key", desk.log_key]
    for name in ("c.json", "c.html", "c.pdf"):
        done = command(desk, "report", request, "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        check = command(desk, "verify-report", str(tmp_path / name), *keys)
        assert check.returncode == 0, check.stdout + check.stderr
        assert ("the pages show exactly" in check.stdout) == (name != "c.json")
    assert (tmp_path / "c.json").read_bytes() == report.body
    assert (tmp_path / "c.html").read_bytes() == html.body
    assert (tmp_path / "c.pdf").read_bytes() == pdf.body
    assert command(desk, "report", request, "-o", str(tmp_path / "c.docx")).returncode == 2

    letter = f"/v1/requests/{request}/letter"
    text = get(desk, "legal", letter, "text/plain").body.decode()
    assert "grace@example.org" in text
    assert "Am " in text, "a letter to Bavaria is in German"
    assert "Dear Sir or Madam" in get(desk, "legal", f"{letter}?language=en", "text/plain").body.decode()
    assert get(desk, "legal", letter, "text/html").headers["cache-control"] == "no-store"
    assert problem(desk, "auditor", letter)[0] == 403, "who audits does not learn who it was"
    assert problem(desk, "legal", f"{letter}?kind=refusal")[0] == 409
    for name in ("l.txt", "l.html", "l.pdf"):
        done = command(desk, "letter", request, "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    for name in ("l.txt", "l.html", "l.pdf"):
        check = command(desk, "verify-report", str(tmp_path / "c.pdf"), *keys, "--letter", str(tmp_path / name))
        assert check.returncode == 0, check.stdout + check.stderr
        assert "about the person of the letter" in check.stdout
    refused = command(desk, "verify-report", str(tmp_path / "c.pdf"), *keys, "--letter", str(tmp_path / "c.html"))
    assert refused.returncode == 2, "what is no letter refutes nothing"
    assert "give the answer to the erasure" in refused.stderr


def test_before_there_is_a_certificate_there_is_an_acknowledgement(desk: Any) -> None:
    desk.call("platform", "PUT", "/v1/settings/controller", CONTROLLER)
    request = ask(desk, "email:nobody@example.org")["id"]
    assert problem(desk, "legal", f"/v1/requests/{request}/report", "application/pdf")[0] == 409
    text = get(desk, "legal", f"/v1/requests/{request}/letter?language=en", "text/plain").body.decode()
    assert "We know nobody by the names you gave" in text
    again = get(desk, "legal", f"/v1/requests/{request}/letter?language=en&kind=acknowledgement", "text/plain")
    assert "You get our answer by" in again.body.decode()


def test_a_month_after_the_final_certificate_the_words_are_gone_and_the_certificate_stays(desk: Any) -> None:
    request = erased(desk)
    services = desk.running.services
    acting = next(one for one in services.tenants() if one.tenant == desk.tenant)
    tenant = Tenant(tenant_id=acting.tenant_id, name=acting.tenant, log_id=acting.log_id)
    later = services.clock.now() + timedelta(days=8)
    destroy_due_keks(services.erasure, acting.tenant_id, later)
    services.keks.turn(later, force=True)
    assert finish(services.erasure, tenant, request, later)
    final = get(desk, "legal", f"/v1/requests/{request}/report?version=final", "application/json").body
    assert get(desk, "legal", f"/v1/requests/{request}/letter", "text/plain").status == 200
    assert end_footprints(services.erasure, acting.tenant_id, later + timedelta(days=29)) == 0
    assert end_footprints(services.erasure, acting.tenant_id, later + timedelta(days=31)) == 1
    assert problem(desk, "legal", f"/v1/requests/{request}/letter")[0] == 410
    assert get(desk, "legal", f"/v1/requests/{request}/report", "application/json").body == final
    assert desk.call("legal", "POST", "/v1/requests:search", {"subject": SUBJECT})["items"] == []
    view = desk.call("legal", "GET", f"/v1/requests/{request}")
    assert view["state"] == "completed"
    assert view["history"][-1]["event"] == "footprint_ended"
