"""What a recipe's requests mean: present or absent, accepted or refused, all pages of a list, the end of a task.

Guarantees: a status that is neither success nor one of absence is `Refused`, never one of the two; a list is followed
to its end or fails (a page that comes again, too many pages), so that "nothing left" is never said of half a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from connectors.http_recipe import Listing, Step, Thing, dotted, filled, holes, path_of, text_of

if TYPE_CHECKING:
    from connectors.base import Deadline
    from connectors.http_client import Answer, HttpClient

_ABSENT = frozenset({404, 410})
_ACCEPTED = 202
_MOST_PAGES = 10_000
_ROUNDS = 3


class Refused(Exception):
    """One item could not be treated; `detail` says why without any value."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Listings:
    """Lists, followed to their end."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def entries(
        self, listing: Listing, values: Mapping[str, str], limit: Deadline, *, absent_is_empty: bool = False
    ) -> Iterator[Any]:
        """Yield each entry. Raises: Refused, and what the client raises."""
        query = filled(listing.query, values)
        seen: set[str] = set()
        for number in range(1, _MOST_PAGES + 1):
            if listing.pages is not None and listing.param is not None:
                query = {**query, listing.param: str(number)}
            answer = self._client.send(
                listing.method, path_of(listing.path, values), limit, query=query, body=filled(listing.body, values)
            )
            if absent_is_empty and answer.status in _ABSENT:
                return
            found = answer.json()
            page = dotted(found, listing.items)
            if not answer.is_success or not isinstance(page, list):
                raise Refused(f"a list could not be read ({answer.status})")
            yield from page
            following = _following(listing, found, page, number)
            if following is None:
                return
            if following in seen:
                raise Refused("the pages of a list go round in circles")
            seen.add(following)
            if listing.pages is None and listing.param is not None:
                query = {**query, listing.param: following}
        raise Refused("a list has too many pages")


def _following(listing: Listing, found: Any, page: Sequence[Any], number: int) -> str | None:
    """Return what names the next page, None after the last one. Raises: Refused where that cannot be told."""
    if listing.pages is not None:
        count = dotted(found, listing.pages)
        if isinstance(count, bool) or not isinstance(count, int):
            raise Refused("a list does not say how many pages it has")
        return str(number + 1) if number < count else None
    if listing.last:
        if listing.more is not None and not dotted(found, listing.more):
            return None
        last = text_of(dotted(page[-1], "id")) if page else None
        if last is None:
            raise Refused("a list says that there is more and does not say where")
        return last
    if listing.cursor is None:
        return None
    cursor = dotted(found, listing.cursor)
    if cursor is None or cursor == "":
        return None
    if not isinstance(cursor, str | int) or isinstance(cursor, bool):
        raise Refused("a list names its next page in no way that can be followed")
    return str(cursor)


class Vendor:
    """The requests of a recipe on one client."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._listings = Listings(client)
        self._tasks: dict[tuple[str, ...], str] = {}

    def read(self, thing: Thing, values: Mapping[str, str], limit: Deadline) -> Answer | None:
        """Return what a read shows, None where it says that there is nothing. Raises: Refused."""
        path = path_of(thing.read.path, values)
        answer = self._client.send("GET", path, limit, query=filled(thing.read.query, values))
        if answer.status in _ABSENT:
            return None
        if not answer.is_success:
            raise Refused(f"a read was refused ({answer.status})")
        if answer.json() is None:
            raise Refused("a read was answered with something that is no JSON")
        return answer

    def delete(self, thing: Thing, values: Mapping[str, str], limit: Deadline) -> bool:
        """Send the delete; True where the vendor may do it later. Raises: Refused."""
        request = thing.delete
        answer = self._client.send(
            request.method, path_of(request.path, values), limit, query=filled(request.query, values),
            body=filled(request.body, values),
        )  # fmt: skip
        if answer.status in _ABSENT:
            return False
        if not answer.is_success:
            raise Refused(f"the vendor refused the delete ({answer.status})")
        if thing.poll is None:
            return thing.slow or answer.status == _ACCEPTED
        task = text_of(dotted(answer.json(), thing.poll.task))
        if task is not None:
            self._tasks[_key(values)] = task
        return True

    def check_task(self, thing: Thing, values: Mapping[str, str], limit: Deadline) -> None:
        """Ask for the task of a delete; that it ended is no proof. Raises: Refused where the vendor says it failed."""
        task = self._tasks.get(_key(values))
        if thing.poll is None or task is None:
            return
        answer = self._client.send("GET", path_of(thing.poll.path, {"task": task}), limit)
        state = dotted(answer.json(), thing.poll.state)
        if answer.is_success and state in thing.poll.failed:
            del self._tasks[_key(values)]
            raise Refused("the vendor's task of the deletion failed")

    def treat(self, steps: Sequence[Step], values: Mapping[str, str], limit: Deadline) -> None:
        """Treat everything that belongs to an item, until a list shows nothing more to treat. Raises: Refused."""
        for step in steps:
            for _ in range(_ROUNDS):
                waiting = list(self._waiting(step, values, limit))
                if not waiting:
                    break
                for entry in waiting:
                    self._each(step, values, entry, limit)
            else:
                if self.remains(step, values, limit):
                    raise Refused("what belongs to the item does not go")

    def remains(self, step: Step, values: Mapping[str, str], limit: Deadline) -> bool:
        """Tell whether something of a step is still there. Raises: Refused."""
        return next(self._waiting(step, values, limit), None) is not None

    def _waiting(self, step: Step, values: Mapping[str, str], limit: Deadline) -> Iterator[Any]:
        for entry in self._listings.entries(step.list, values, limit, absent_is_empty=True):
            if step.gone is None or not dotted(entry, step.gone):
                yield entry

    def _each(self, step: Step, values: Mapping[str, str], entry: Any, limit: Deadline) -> None:
        given = dict(values)
        for hole in holes(step.each):
            if hole.startswith("item."):
                value = text_of(dotted(entry, hole.removeprefix("item.")))
                if value is None:
                    raise Refused("what belongs to the item has no id that can be used")
                given[hole] = value
        request = step.each
        answer = self._client.send(
            request.method, path_of(request.path, given), limit, query=filled(request.query, given),
            body=filled(request.body, given),
        )  # fmt: skip
        if not answer.is_success and answer.status not in _ABSENT:
            raise Refused(f"the vendor refused to delete what belongs to the item ({answer.status})")


def _key(values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(values[name] for name in sorted(values))
