"""`muniment verify-report`: a certificate checked offline, with no server, no database and no network."""

from __future__ import annotations

from pathlib import Path

import click

from api.commands.options import CannotRun, json_option, show
from erasure.errors import ReportError
from erasure.report_check import check


@click.command("verify-report")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--key", required=True, help="The tenant's certificate key (C2SP vkey), from a source you trust.")
@click.option("--log-key", default=None, help="The key of the tenant's log; pins the record too.")
@click.option("--data", default=None, hidden=True)
@click.option("--tenant", default=None, hidden=True)
@json_option
def verify_report(
    file: Path, key: str, log_key: str | None, data: str | None, tenant: str | None, *, as_json: bool
) -> int:
    """Checks signature, proofs and counts of a certificate; exits 1 when anything does not hold."""
    del data, tenant  # nothing of a folder or a server is used
    try:
        report = file.read_bytes()
    except OSError as error:
        message = f"{file}: {(error.strerror or 'not readable').lower()}"
        raise CannotRun(message) from None
    try:
        proven = check(report, key, log_vkey=log_key)
    except ReportError as error:
        show({"verdict": "refuted", "because": str(error)}, as_json=as_json, lines=[f"refuted: {error}"])
        return 1
    show(
        {"verdict": "sound", "proven": proven},
        as_json=as_json,
        lines=[*(f"proven: {line}" for line in proven), "sound"],
    )
    return 0


COMMANDS = {"verify-report": verify_report}
