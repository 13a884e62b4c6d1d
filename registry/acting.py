"""Who acts: a principal of one tenant with its roles and the stores and classes its token may use.

Guarantees: a value, made once by authentication (`registry.tokens`) and never from a body or an address.
Does not decide who may call what over HTTP; that is `api`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

EVERYTHING = "*"
SYSTEM_PRINCIPAL = "system"
ROLES = frozenset({"writer", "platform", "legal", "auditor", "admin"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """A principal, its tenant and what its token allows."""

    tenant_id: int
    tenant: str
    log_id: str
    principal: str
    token_id: str
    roles: frozenset[str]
    stores: tuple[str, ...]
    classes: tuple[str, ...]

    @classmethod
    def system(cls, *, tenant_id: int, tenant: str, log_id: str) -> Self:
        """The service itself, in one tenant: every store and class, no role, so no route lets it in."""
        return cls(
            tenant_id=tenant_id,
            tenant=tenant,
            log_id=log_id,
            principal=SYSTEM_PRINCIPAL,
            token_id=SYSTEM_PRINCIPAL,
            roles=frozenset(),
            stores=(EVERYTHING,),
            classes=(EVERYTHING,),
        )

    def has_role(self, *names: str) -> bool:
        """Whether the token carries at least one of the roles."""
        return not self.roles.isdisjoint(names)

    def may_use_store(self, name: str) -> bool:
        """Whether the token may register items in that store."""
        return EVERYTHING in self.stores or name in self.stores

    def may_use_class(self, name: str) -> bool:
        """Whether the token may register items of that class."""
        return EVERYTHING in self.classes or name in self.classes
