"""Made-up applicants for one role: the same people at every run, none of them real.

Guarantees: names, addresses and numbers are drawn from word lists with a fixed seed; e-mail addresses use a domain that
is reserved for examples (RFC 2606).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_FIRST = (
    "Ada",
    "Bela",
    "Carla",
    "Dario",
    "Edda",
    "Femi",
    "Greta",
    "Hanno",
    "Ilse",
    "Jonas",
    "Kaya",
    "Lena",
    "Mirko",
    "Nora",
    "Oskar",
    "Paula",
    "Quirin",
    "Rosa",
    "Sami",
    "Thea",
    "Ulla",
    "Viggo",
    "Wanda",
    "Xenia",
    "Yara",
    "Zoltan",
)
_LAST = (
    "Abendroth",
    "Birkholz",
    "Cieslak",
    "Dornbusch",
    "Eisenhardt",
    "Falkenrath",
    "Grünewald",
    "Hollerbach",
    "Immergut",
    "Jaspersen",
    "Kaltofen",
    "Lindqvist",
    "Morgenroth",
    "Nussbaum",
    "Oehlmann",
    "Petersilie",
    "Quandtner",
    "Rosenbusch",
    "Silberstern",
    "Tannenwald",
    "Uhlenbrock",
    "Vogelsang",
    "Wintermeyer",
    "Zillmann",
)
_STREETS = (
    "Lindenallee",
    "Mühlweg",
    "Am Alten Hafen",
    "Kastanienhof",
    "Brunnenstieg",
    "Sternwartengasse",
)
_SKILLS = (
    "Python",
    "PostgreSQL",
    "distributed systems",
    "incident response",
    "Kubernetes",
    "observability",
    "TypeScript",
)
_MUST_HAVE = "Python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """One person's application. `years` of experience, `applied_before` roles with their outcome."""

    number: int
    name: str
    email: str
    phone: str
    street: str
    years: int
    skills: tuple[str, ...]
    applied_before: tuple[tuple[str, str], ...]

    @property
    def thread(self) -> str:
        """The name of this applicant's thread."""
        return f"role-14/app-{self.number:04d}"

    @property
    def subject(self) -> str:
        """How the product names this person."""
        return f"email:{self.email}"

    @property
    def cv(self) -> str:
        """The CV as sent."""
        return (
            f"Curriculum vitae\n{self.name}\n{self.street}, {self.email}, {self.phone}\n\n"
            f"Experience: {self.years} years of building services with {', '.join(self.skills)}.\n"
            f"{self.name} led the move of a payment service to {self.skills[0]} without an outage.\n"
            f"References: on request from {self.name}.\n"
        )

    @property
    def evidence(self) -> str:
        """The sentence of the CV that a score quotes."""
        return f"{self.name} led the move of a payment service to {self.skills[0]} without an outage."

    @property
    def meets_rules(self) -> bool:
        """Whether the role's hard rules are met."""
        return self.years >= 2 and _MUST_HAVE in self.skills  # noqa: PLR2004 - the rule of the role


def applicants(count: int) -> list[Applicant]:
    """Return `count` applicants, the same at every call."""
    rng = random.Random(14)  # noqa: S311 - a demonstration needs the same people each time, not secrecy
    made = []
    names = rng.sample([(first, last) for first in _FIRST for last in _LAST], count)
    for number, (first, last) in enumerate(names, start=1):
        skills = tuple(rng.sample(_SKILLS, 3))
        before = (("role-11", "declined"),) if rng.random() < 0.1 else ()  # noqa: PLR2004 - about one in ten
        made.append(
            Applicant(
                number=number,
                name=f"{first} {last}",
                email=f"{first}.{last}@applicants.example".lower().replace("ü", "ue"),
                phone=f"+49 30 5550{number:04d}",
                street=f"{rng.choice(_STREETS)} {number}",
                years=rng.randint(0, 14),
                skills=skills,
                applied_before=before,
            )
        )
    return made
