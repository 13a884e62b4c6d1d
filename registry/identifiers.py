"""How callers name people: `type:value`, parsed and normalised per type so that one name is one look-up.

Guarantees: pure; equal people written differently (case, spaces, full-width letters, `00` for `+`) normalise alike,
unequal ones stay apart, look-alike addresses of mixed scripts are refused. No error repeats a value.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from registry.errors import MalformedSubject

VALUE_LIMIT = 512
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_PHONE_MARKS = re.compile(r"[\s().\-/]+")
_PHONE = re.compile(r"\+?[0-9]{3,15}")
_DOTS = re.compile("[.\u3002\uff61]")
"""What separates the parts of a domain. Source: RFC 3490 §3.1."""
_SCRIPTS = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"})
"""Scripts whose letters look like one another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identifier:
    """A name of a person. `value` is normalised and decides identity; `given` is what the caller wrote."""

    type: str
    value: str = field(repr=False)
    given: str = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The normalised `type:value`."""
        return f"{self.type}:{self.value}"


def parse_subject(text: object) -> Identifier:
    """The identifier that `type:value` names. Raises: MalformedSubject. Source: API §6."""
    if not isinstance(text, str):
        raise MalformedSubject("expected a text type:value")
    kind, colon, value = text.partition(":")
    if not colon:
        raise MalformedSubject("expected type:value, there is no colon")
    if not _TYPE.fullmatch(kind):
        raise MalformedSubject("the type is not [a-z][a-z0-9_]* of at most 32 characters")
    if not 1 <= len(value) <= VALUE_LIMIT:
        raise MalformedSubject(f"the value has {len(value)} characters, expected 1 to {VALUE_LIMIT}")
    if "*" in value or "%" in value:
        raise MalformedSubject("the value contains * or %, which would read as a pattern")
    for sign in () if value.isascii() and value.isprintable() else value:
        if unicodedata.category(sign) in {"Cc", "Cs", "Cf", "Zl", "Zp"}:
            raise MalformedSubject("the value contains control or invisible characters")
    if not value.strip():
        raise MalformedSubject("the value is blank")
    return Identifier(type=kind, value=_normalise(kind, value), given=value)


def parse_subjects(texts: Sequence[object], place: str = "/subjects") -> list[Identifier]:
    """The identifiers of a list that stands at `place` of a body. Raises: MalformedSubject naming the one."""
    found = []
    for number, text in enumerate(texts):
        try:
            found.append(parse_subject(text))
        except MalformedSubject as error:
            raise MalformedSubject(error.detail, f"{place}/{number}") from error
    return found


def _normalise(kind: str, value: str) -> str:
    if kind == "email":
        return _email(value)
    if kind == "phone":
        return _phone(value)
    return unicodedata.normalize("NFC", value)


def _email(value: str) -> str:
    folded = unicodedata.normalize("NFKC", _fold(unicodedata.normalize("NFKC", value))).strip()
    local, at, domain = folded.rpartition("@")
    domain = domain.rstrip(".")
    if not at or not local or not domain or "@" in local or any(sign.isspace() for sign in folded):
        raise MalformedSubject("an email is local@domain")
    for label in (local, *domain.split(".")):
        if len({_script(sign) for sign in label} & _SCRIPTS) > 1:
            raise MalformedSubject("the address mixes scripts within one label, as look-alike addresses do")
    try:
        domain = ".".join(_label(label) for label in _DOTS.split(domain))
    except UnicodeError:
        if not domain.isascii():
            raise MalformedSubject("the domain is not a valid internationalised name") from None
    return f"{local}@{domain}"


def _fold(value: str) -> str:
    """Case put away, and ß not written as ss: those are the addresses and domains of two people."""
    return "ß".join(part.casefold() for part in value.replace("ẞ", "ß").split("ß"))


def _label(label: str) -> str:
    """A part of a domain as it is registered. Source: RFC 5891; Python's codec is of RFC 3490, which knew no ß."""
    if "ß" not in label:
        return label.encode("idna").decode("ascii")
    return f"xn--{label.encode('punycode').decode('ascii')}"


def _script(sign: str) -> str:
    return unicodedata.name(sign, "").split(" ", 1)[0] if sign.isalpha() else ""


def _phone(value: str) -> str:
    folded = unicodedata.normalize("NFKC", value).strip()
    if folded.startswith(("+", "00")):  # only behind a country's code is the (0) one that nobody dials
        folded = folded.replace("(0)", "", 1)
    digits = _PHONE_MARKS.sub("", folded)
    if digits.startswith("00"):
        digits = f"+{digits[2:]}"
    if not _PHONE.fullmatch(digits):
        raise MalformedSubject("a phone is 3 to 15 digits, with + and the country code where it is known")
    return digits
