"""Recipes: how one vendor's API reads, deletes and lists each kind of thing, declared in YAML.

Guarantees: a recipe is checked whole before it is used: unknown members, values that no request can fill and kinds
without a way to read are refused. Nothing in it runs; a template is a path with `{names}` of the locator, each value
percent-encoded. Shipped recipes lie in `connectors/recipes`; an operator's own comes as text behind `file:…`.

    kinds:
      trace:
        fields: [id]
        read: {path: "/api/public/traces/{id}"}
        delete: {method: DELETE, path: "/api/public/traces/{id}"}
        slow: true
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import yaml

from connectors.errors import BadConfig, BadLocator

FOLDER = Path(__file__).parent / "recipes"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_HOLE = re.compile(r"\{([a-z_][a-z0-9_.]*)\}")
_LONGEST = 512
_LARGEST = 256 << 10


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a recipe; unknown members are refused."""


class Request(_Part, frozen=True):
    """One request; `{names}` in path, query and body are filled from the locator."""

    path: str
    method: Literal["GET", "POST", "DELETE", "PATCH", "PUT"] = "GET"
    query: dict[str, str] = {}
    body: Any = None


class Listing(_Part, frozen=True):
    """A request that lists things page by page."""

    path: str
    method: Literal["GET", "POST"] = "GET"
    query: dict[str, str] = {}
    body: Any = None
    items: str = "data"
    """Where the entries stand in the answer."""
    locator: dict[str, str] = {}
    """Field of the locator → where it stands in an entry."""
    owner: str | None = None
    """Where an entry names its owner, if not as in `read`."""
    cursor: str | None = None
    """Where the answer names the next page; without it there is one page, or numbered ones."""
    param: str | None = None
    """The query parameter that takes the cursor or the number."""
    last: bool = False
    """The cursor is the last entry's `id`, while `more` says that there are more."""
    more: str | None = None
    pages: str | None = None
    """Where the answer says how many numbered pages there are."""


class Step(_Part, frozen=True):
    """Things that belong to an item and do not go with it: listed, and each treated by a request of its own."""

    list: Listing
    each: Request
    gone: str | None = None
    """A member that is set on entries which are still listed and hold nothing any more; else they must be gone."""


class Poll(_Part, frozen=True):
    """A task that the delete answers with, and how to ask for it."""

    path: str
    task: str
    """Where the delete's answer names the task."""
    state: str
    done: list[str]
    failed: list[str]


class Create(_Part, frozen=True):
    """How `check` writes a canary of this kind; `{canary}` and `{owner}` are filled in."""

    request: Request
    locator: dict[str, str]


class Thing(_Part, frozen=True):
    """One kind of thing that a vendor keeps."""

    fields: list[str]
    read: Request
    delete: Request
    owner: str | None = None
    """Where `read` names the owner, unless the store's `owner_field` says otherwise; None where it never does."""
    before: list[Step] = []
    after: list[Step] = []
    listing: Listing | None = None
    poll: Poll | None = None
    slow: bool = False
    """The vendor says success and deletes later."""
    create: Create | None = None


class Auth(_Part, frozen=True):
    """The header that carries the secret; `basic` encodes it as user and password."""

    header: str = "Authorization"
    value: str = "Bearer {secret}"
    basic: bool = False


class Scope(_Part, frozen=True):
    """How to see which project or workspace the credentials lead to."""

    path: str
    field: str


class Recipe(_Part, frozen=True):
    """One vendor's API."""

    recipe: str
    about: str
    kinds: dict[str, Thing]
    auth: Auth = Auth()
    headers: dict[str, str] = {}
    scope: Scope | None = None
    keeps: str = "what the vendor keeps in logs and backups is not known"
    not_covered: list[str] = []
    patience_seconds: float = 2.0
    """How long `erase` waits for a deletion that the vendor does later."""


def shipped() -> tuple[str, ...]:
    """Return the names of the recipes that come with this version."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load(recipe: object) -> Recipe:
    """Return a shipped recipe by name, or one given as YAML. Raises: BadConfig."""
    if not isinstance(recipe, str) or not recipe.strip():
        raise BadConfig(f"recipe is one of {', '.join(shipped())}, or file:… with one of your own")
    if _NAME.fullmatch(recipe):
        if recipe not in shipped():
            raise BadConfig(f"no recipe of that name, shipped are {', '.join(shipped())}")
        recipe = (FOLDER / f"{recipe}.yaml").read_text(encoding="utf-8")
    if len(recipe) > _LARGEST:
        raise BadConfig("the recipe is too long")
    try:
        parsed = msgspec.convert(yaml.safe_load(recipe), Recipe)
    except yaml.YAMLError:
        raise BadConfig("the recipe is no YAML") from None
    except msgspec.ValidationError as error:
        raise BadConfig(f"the recipe: {error}") from None
    faults = list(_faults(parsed))
    if faults:
        raise BadConfig(f"the recipe: {faults[0]}")
    return parsed


def _faults(recipe: Recipe) -> Iterator[str]:
    if not recipe.kinds:
        yield "it has no kinds"
    if not recipe.auth.basic and "{secret}" not in recipe.auth.value:
        yield "the auth value has no {secret}"
    for name, thing in recipe.kinds.items():
        if not _NAME.fullmatch(name) or not thing.fields or "kind" in thing.fields:
            yield f"kind {name!r} has no proper name or fields"
        yield from _request_faults(name, thing)
        yield from _step_faults(name, thing)
        if thing.listing is not None:
            if holes(thing.listing) or set(thing.listing.locator) != set(thing.fields):
                yield f"{name}.listing does not give exactly the fields of the locator"
            yield from _paging(f"{name}.listing", thing.listing)
        if thing.poll is not None and holes(Request(path=thing.poll.path)) != {"task"}:
            yield f"{name}.poll has another hole than {{task}}"
        if thing.create is not None and set(thing.create.locator) != set(thing.fields):
            yield f"{name}.create does not give exactly the fields of the locator"


def _request_faults(name: str, thing: Thing) -> Iterator[str]:
    fields = set(thing.fields)
    for what, request in (("read", thing.read), ("delete", thing.delete)):
        if unknown := holes(request) - fields:
            yield f"{name}.{what} needs {', '.join(sorted(unknown))}, which the locator has not"
        if missing := fields - holes(request):
            yield f"{name}.{what} does not use {', '.join(sorted(missing))}: it may name more than one thing"
    if thing.read.method != "GET":
        yield f"{name}.read is no GET"


def _step_faults(name: str, thing: Thing) -> Iterator[str]:
    for step in (*thing.before, *thing.after):
        inner = {hole for hole in holes(step.each) if not hole.startswith("item.")}
        if unknown := (holes(step.list) | inner) - set(thing.fields):
            yield f"a step of {name} needs {', '.join(sorted(unknown))}, which the locator has not"
        yield from _paging(f"a step of {name}", step.list)


def _paging(where: str, listing: Listing) -> Iterator[str]:
    ways = sum((listing.cursor is not None, listing.last, listing.pages is not None))
    if ways > 1 or (ways and listing.param is None) or (listing.last and listing.more is None):
        yield f"{where} pages in no way that can be followed"


def holes(request: Request | Listing) -> set[str]:
    """Return the names that a request needs."""
    found: set[str] = set()
    waiting: list[Any] = [request.path, request.query, request.body]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            found |= set(_HOLE.findall(each))
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found


def path_of(template: str, values: Mapping[str, str]) -> str:
    """Return a path with its values percent-encoded."""
    return _HOLE.sub(lambda hole: quote(values[hole.group(1)], safe=""), template)


class Values(dict[str, str]):
    """The values of a locator as texts, and in `raw` as they were given: some vendors tell 5 from "5"."""

    raw: Mapping[str, Any] = {}


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return a query or body with its values filled in; where one stands alone, a number stays a number."""
    if isinstance(value, str):
        alone = _HOLE.fullmatch(value)
        if alone is not None and isinstance(values, Values) and isinstance(values.raw.get(alone.group(1)), int):
            return values.raw[alone.group(1)]
        return _HOLE.sub(lambda hole: values[hole.group(1)], value)
    if isinstance(value, Mapping):
        return {name: filled(each, values) for name, each in value.items()}
    return [filled(each, values) for each in value] if isinstance(value, list) else value


def dotted(found: Any, path: str) -> Any:
    """Return a member by its dotted path, None where there is none; a path of its own name with dots wins."""
    if isinstance(found, Mapping) and path in found:
        return found[path]
    for name in path.split("."):
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def values_of(recipe: Recipe, locator: Mapping[str, Any]) -> tuple[str, Thing, Values]:
    """Return kind and values of a locator that names exactly one thing. Raises: BadLocator."""
    name = locator.get("kind")
    if not isinstance(name, str) or name not in recipe.kinds:
        raise BadLocator(f"kind is one of {', '.join(sorted(recipe.kinds))}")
    thing = recipe.kinds[name]
    if set(locator) != {"kind", *thing.fields}:
        raise BadLocator(f"a locator of kind {name} has the members kind, {', '.join(thing.fields)}")
    values = {field: text_of(locator[field]) for field in thing.fields}
    if any(value is None for value in values.values()):
        raise BadLocator("a value is not a text or a number that can stand in a path")
    given = Values({field: value for field, value in values.items() if value is not None})
    given.raw = {field: locator[field] for field in thing.fields}
    return name, thing, given


def text_of(value: object) -> str | None:
    """Return a value as it stands in a path, None for what would name another place or none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    # A path of dots would be resolved away by the vendor's server.
    if not 0 < len(text) <= _LONGEST or not text.strip(".") or text != text.strip():
        return None
    if any(ord(sign) < 32 or 0xD800 <= ord(sign) < 0xE000 for sign in text):  # noqa: PLR2004 -- controls, surrogates
        return None
    return text
