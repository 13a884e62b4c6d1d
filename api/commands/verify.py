"""`muniment verify`: the record of every tenant against its checkpoints.

Guarantees: reads the folder and the stores only, takes no lock, and runs beside a serving process. Exit codes: 0 sound,
1 a proven fault, 2 could not check.
"""

from __future__ import annotations

from pathlib import Path

import click

from api.commands.options import ONE_TENANT, CannotRun, copied_key, local


@click.command("verify")
@click.option(
    "--all", "everything", is_flag=True, help="All tenants, every byte, and the database's index beside them."
)
@click.option(
    "--sample", type=click.IntRange(min=1), default=None, help="Look into the content of so many entries only."
)
@click.option("--stream", default=None, help="Look into the content of one stream only.")
@click.option("--key", default=None, callback=copied_key, help="The log's public key (C2SP vkey) that you pinned.")
@click.option("--since", type=click.Path(path_type=Path), default=None, help="A checkpoint that you kept earlier.")
@click.option(
    "--witness",
    "witnesses",
    multiple=True,
    callback=copied_key,
    help="A witness's public key (C2SP vkey) that you pinned; those of ANCHORS count without.",
)
@click.option(
    "--tsa",
    "authorities",
    multiple=True,
    help="The SHA-256 of a time stamp authority's certificate that you pinned; those of ANCHORS count without.",
)
@click.option(
    "--anchors",
    type=click.Path(path_type=Path),
    default=None,
    help="A list of anchors that you kept, one name a line: each must still be there.",
)
@click.option(
    "--keep-anchors",
    type=click.Path(path_type=Path),
    default=None,
    help="Write the list of anchors that are there now, for the next time.",
)
@click.option(
    "--certificate-key",
    "certificate_keys",
    multiple=True,
    callback=copied_key,
    help="The public key (C2SP vkey) of the tenant's certificates that you pinned.",
)
@click.option(
    "--receipt",
    "receipts",
    type=click.Path(path_type=Path, allow_dash=True),
    default=None,
    help="Answers of the record that you kept (a file, or - for stdin): does all that they acknowledge still stand?",
)
@click.option("--prove", "prove_it", is_flag=True, help="Corrupt a copy in every known way and show what was noticed.")
@click.option(
    "--processes", type=click.IntRange(1, 16), default=None, help="How many work on a log; as many as it is worth."
)
@local(ONE_TENANT)
def verify_command(
    *,
    everything: bool,
    sample: int | None,
    stream: str | None,
    key: str | None,
    since: Path | None,
    witnesses: tuple[str, ...],
    authorities: tuple[str, ...],
    anchors: Path | None,
    keep_anchors: Path | None,
    certificate_keys: tuple[str, ...],
    receipts: Path | None,
    prove_it: bool,
    processes: int | None,
    data: Path,
    tenant: str | None,
    as_json: bool,
) -> int:
    """Checks the record of every tenant against its checkpoints; needs no running server."""
    if everything and (sample is not None or stream is not None):
        message = "--all checks everything: leave out --sample and --stream"
        raise CannotRun(message)
    if receipts is not None:
        others = (everything, sample, stream, since, witnesses, authorities, anchors, keep_anchors, certificate_keys)
        if prove_it or processes is not None or any(others):
            message = "--receipt checks what receipts acknowledge and nothing else: only --key goes with it"
            raise CannotRun(message)
        from api.commands.receipts import verify_receipts  # noqa: PLC0415 - as below

        return verify_receipts(receipts, data, tenant, key=key, as_json=as_json)
    from api.commands.verifying import verify_folder  # noqa: PLC0415 - the service is heavy, and --help needs none of it

    return verify_folder(
        data,
        tenant,
        everything=everything,
        sample=sample,
        stream=stream,
        key=key,
        since=since,
        witnesses=witnesses,
        authorities=authorities,
        anchors=anchors,
        keep_anchors=keep_anchors,
        certificate_keys=certificate_keys,
        prove_it=prove_it,
        processes=processes,
        as_json=as_json,
    )


COMMANDS = {"verify": verify_command}
