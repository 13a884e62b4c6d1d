"""Ed25519 verification in pure Python: slow, dependency-free, for offline checks of public signatures.

Only verifies. It is not constant-time and needs not be: nothing here is secret. Source: RFC 8032 §5.1.
"""

from __future__ import annotations

import hashlib

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_SQRT_MINUS_1 = pow(2, (_P - 1) // 4, _P)
_SIGN_BIT = 1 << 255
_KEY_BYTES = 32
_SIGNATURE_BYTES = 64

# Extended homogeneous coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x·y = T/Z. Source: RFC 8032 §5.1.4.
Point = tuple[int, int, int, int]


def verifies(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` over `message` is by `public_key`; False for anything malformed.

    Follows the strict reading: canonical encodings only, S below the group order, and keys of small order refused,
    since they verify signatures that nobody made. Source: RFC 8032 §5.1.7.
    """
    if len(public_key) != _KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
        return False
    key = _decode(public_key)
    commitment = _decode(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or scalar >= _L or _is_identity(_multiply(8, key)):
        return False
    digest = hashlib.sha512(signature[:32] + public_key + message).digest()
    challenge = int.from_bytes(digest, "little") % _L
    return _same(_multiply(scalar, _BASE), _add(commitment, _multiply(challenge, key)))


def _add(a: Point, b: Point) -> Point:
    p = (a[1] - a[0]) * (b[1] - b[0]) % _P
    q = (a[1] + a[0]) * (b[1] + b[0]) % _P
    r = 2 * a[3] * b[3] * _D % _P
    s = 2 * a[2] * b[2] % _P
    e, f, g, h = q - p, s - r, s + r, q + p
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiply(scalar: int, point: Point) -> Point:
    total: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = _add(total, point)
        point = _add(point, point)
        scalar >>= 1
    return total


def _same(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % _P == 0 and (a[1] * b[2] - b[1] * a[2]) % _P == 0


def _is_identity(point: Point) -> bool:
    return _same(point, (0, 1, 1, 0))


def _decode(data: bytes) -> Point | None:
    """Return the point, or None if the bytes are not the canonical form of one. Source: RFC 8032 §5.1.3."""
    value = int.from_bytes(data, "little")
    y = value & (_SIGN_BIT - 1)
    sign = value >> 255
    if y >= _P:
        return None
    x = _x_of(y)
    if x is None or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _x_of(y: int) -> int | None:
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _SQRT_MINUS_1 % _P
    return None if (x * x - square) % _P else x


def _base() -> Point:
    y = 4 * pow(5, _P - 2, _P) % _P
    x = _x_of(y)
    assert x is not None  # noqa: S101 (a constant of the curve)
    x = x if x % 2 == 0 else _P - x
    return x, y, 1, x * y % _P


_BASE = _base()
