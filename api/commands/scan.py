"""`muniment scan`: what an existing store holds, with no registration; `--register` makes stores and artifacts of it.

Guarantees: without `--register` no server, token or data folder is needed, and nothing is written anywhere. Names of
people are printed only with `--names`. Registering goes through the server like everybody's, so its list of allowed
targets, its classes and its fences decide; registering again changes nothing. An address with a password is never sent:
the server gets a reference (`--address-ref`).

Exit codes: 0 everything was read, 1 the server refused something, 2 something could not be read or nothing is there.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from api.clock import Clock
from api.commands.options import CannotRun, client_of, remote, show, waiting
from connectors.errors import ConnectorError
from connectors.scanning.look import Found, Sink, subject_of
from connectors.scanning.plain import as_json as scan_as_json
from connectors.scanning.plain import lines, reach_of
from connectors.scanning.report import Place, Scan
from muniment.errors import ApiProblem
from muniment.registry import Client

_BATCH = 1000
_NAME = re.compile(r"[^a-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """How to register what is found."""

    name: str | None
    data_class: str | None
    subject_type: str
    address_ref: str | None
    wal_retention: str | None


@dataclass(slots=True, kw_only=True)
class _Registered:
    """What became of the findings."""

    stores: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    nobody: int = 0
    skipped: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "stores": self.stores,
            "artifacts": dict(self.counts),
            "problems": dict(self.problems),
            "not_registered_names_nobody": self.nobody,
            "skipped": self.skipped,
            "noted": self.noted,
        }

    def lines(self) -> list[str]:
        found = [f"store {store['name']}: {store['kind']}, version {store['version']}" for store in self.stores]
        found += [f"artifacts {status}: {count:,}" for status, count in sorted(self.counts.items())]
        if self.counts["created"]:
            found.append(f"{self.counts['created']:,} items were unknown to the registry until now")
        found += [f"  {count:,} rejected: {reason}" for reason, count in self.problems.most_common()]
        if self.nobody:
            found.append(f"{self.nobody:,} items name nobody and were not registered")
        return found + [f"not registered: {line}" for line in (*self.skipped, *self.noted)]


@click.command("scan")
@click.argument("target")
@click.option("--subject", default=None, help="Try an erasure of this person (- reads it from stdin); nothing changes.")
@click.option("--owner-field", default=None, help="The field or column that names owners, if not a usual one.")
@click.option("--names", is_flag=True, help="Print the people found by name.")
@click.option("--timeout", default=3600.0, show_default=True, help="Seconds to look for at most.")
@click.option("--register", is_flag=True, help="Make stores and artifacts of what is found, through the server.")
@click.option("--name", default=None, help="Name of the store to register.")
@click.option("--class", "data_class", default=None, help="Data class of the artifacts.")
@click.option("--subject-type", default="user", show_default=True, help="Type of people whose name has none.")
@click.option("--address-ref", default=None, help="env:… or file:… under which the server finds the address.")
@click.option("--wal-retention", default=None, help="How long PostgreSQL's log and its copies are kept, like P7D.")
@click.option("--writer-token", envvar="MUNIMENT_WRITER_TOKEN", default=None, help="Token for the artifacts.")
@remote
def look(
    *,
    target: str,
    subject: str | None,
    owner_field: str | None,
    names: bool,
    timeout: float,
    register: bool,
    name: str | None,
    data_class: str | None,
    subject_type: str,
    address_ref: str | None,
    wal_retention: str | None,
    writer_token: str | None,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Says whose data lies at a URL or a path, and what a deletion request would meet there; changes nothing."""
    person = sys.stdin.readline().strip() if subject == "-" else subject
    if subject is not None and not person:
        message = "--subject is empty"
        raise CannotRun(message)
    found = _look(target, owner_field=owner_field, subject=person, timeout=timeout, sink=None)
    told = scan_as_json(found, names=names) if as_json else {}
    text = [] if as_json else list(lines(found, names=names))
    registered = None
    if register:
        wish = _Wish(
            name=name, data_class=data_class, subject_type=subject_type, address_ref=address_ref,
            wal_retention=wal_retention,
        )  # fmt: skip
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            again = partial(_look, target, owner_field=owner_field, subject=None, timeout=timeout)
            with client_of(data=data, url=url, token=writer_token or token, tenant=tenant) as writer:
                registered = _register((client, writer), found, wish, again)
        told["registered"] = registered.as_json()
        text += ["", *registered.lines()]
    show(told, as_json=as_json, lines=text)
    if registered is not None and (registered.counts["rejected"] or registered.skipped):
        return 1
    return 2 if found.could_not_read() or not found.places else 0


def _look(target: str, *, owner_field: str | None, subject: str | None, timeout: float, sink: Sink | None) -> Scan:
    from connectors.scanning.scan import scan  # noqa: PLC0415 - drivers are heavy, and --help needs none of them

    try:
        with waiting("scan"):
            return scan(
                target, now=Clock().now(), deadline=timeout, owner_field=owner_field, subject=subject, sink=sink
            )
    except ConnectorError as error:
        raise CannotRun(str(error)) from None


def _register(clients: tuple[Client, Client], found: Scan, wish: _Wish, again: Callable[..., Scan]) -> _Registered:
    """Puts the stores, then looks once more and hands each item over; memory does not grow with the store."""
    platform, writer = clients
    done = _Registered()
    stores: dict[tuple[str, str], tuple[str, str]] = {}
    wanted = [place for place in found.places if _can(place, wish, done)]
    for number, place in enumerate(wanted):
        store = _store_name(wish.name, place, number if len(wanted) > 1 else None)
        spec = {"kind": place.kind, "config": _config(place, wish)}
        try:
            made = platform.request("PUT", f"/v1/stores/{store}", spec)
        except ApiProblem as problem:
            done.skipped.append(f"{place.label}: {problem.title}: {problem.detail}")
            continue
        done.stores.append({"name": store, "kind": place.kind, "version": made["version"]})
        if _is_postgres(place) and wish.wal_retention is None:
            done.noted.append(f"{store}: how long PostgreSQL's log is kept (--wal-retention): certificates say unknown")
        stores[place.what, place.label] = (store, wish.data_class or place.data_class or "")
    batch: list[dict[str, Any]] = []

    def hand_over(place: Place, item: Found) -> None:
        target_store = stores.get((place.what, place.label))
        if target_store is None:
            return
        if not item.owners:
            done.nobody += 1
            return
        batch.append(_artifact(item, target_store, wish))
        if len(batch) >= _BATCH:
            _send(writer, batch, done)

    if stores:
        again(sink=hand_over)
        _send(writer, batch, done)
    return done


def _can(place: Place, wish: _Wish, done: _Registered) -> bool:
    reach = reach_of(place)
    if not place.registrable:
        done.noted.append(f"{place.label}: {place.what} names no items of its own")
        return False
    if reach.level is None:
        done.skipped.append(f"{place.label}: {reach.because}")
    elif not (wish.data_class or place.data_class):
        done.skipped.append(f"{place.label}: say which class its items have (--class)")
    else:
        return True
    return False


def _is_postgres(place: Place) -> bool:
    return str(place.config.get("url", "")).startswith("postgres")


def _config(place: Place, wish: _Wish) -> dict[str, Any]:
    config = place.store_config()
    if wish.wal_retention is not None and _is_postgres(place):
        config["wal_retention"] = wish.wal_retention
    address = config.get("url")
    if wish.address_ref is not None and isinstance(address, str):
        return {**config, "url": wish.address_ref}
    if isinstance(address, str) and urlsplit(address).password is not None:
        message = "the address holds a password: put it where the server finds it and name that with --address-ref"
        raise CannotRun(message)
    if isinstance(address, str) and address.startswith("postgres"):
        return {**config, "url": "postgresql+psycopg://" + address.partition("://")[2]}
    return config


def _store_name(name: str | None, place: Place, number: int | None) -> str:
    if name is not None:
        return name if number is None else f"{name}-{place.what}"[:60] + (f"-{number}" if number else "")
    plain = _NAME.sub("-", f"{Path(place.label).stem}-{place.what}".lower()).strip("-.")
    return (plain if plain[:1].isalpha() else f"s-{plain}")[:60]


def _artifact(item: Found, store: tuple[str, str], wish: _Wish) -> dict[str, Any]:
    made: dict[str, Any] = {
        "store": store[0],
        "data_class": store[1],
        "locator": dict(item.locator),
        "subjects": sorted({subject_of(owner, wish.subject_type) for owner in item.owners}),
    }
    if item.at is not None:
        made["observed_at"] = item.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return made


def _send(writer: Client, batch: list[dict[str, Any]], done: _Registered) -> None:
    if not batch:
        return
    for result in writer.artifacts(batch):
        done.counts[result["status"]] += 1
        if result["status"] == "rejected":
            problem = result.get("problem") or {}
            told = problem.get("detail") or problem.get("type") if isinstance(problem, dict) else problem
            done.problems[str(told)] += 1
    batch.clear()


COMMANDS = {"scan": look}
