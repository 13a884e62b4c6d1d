"""Vectors told by their direction, for indexes that keep them at length one in digits of their own rounding.

Guarantees: a canary that is part of a vector as float32 is found in any multiple of it, as long as the part begins at
the head, in the middle or at the tail, where `vectors` takes its windows. A canary that is something else finds nothing
but by chance: directions have to agree in nine digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_WINDOWS = range(3, 13)
"""Numbers of a vector that a canary may hold."""
_SAME = 1 - 1e-9


def alike(vectors: NDArray[Any], canaries: Sequence[bytes]) -> dict[int, int]:
    """Return, by the canary's number, how many of the vectors, one a row, run in the direction of it."""
    found: dict[int, int] = {}
    for width in _WINDOWS:
        wanted = [(number, each) for number, each in enumerate(canaries) if len(each) == width * 4]
        if not wanted or vectors.shape[1] < width:
            continue
        with np.errstate(all="ignore"):
            given = _unit(np.frombuffer(b"".join(each for _, each in wanted), "<f4").reshape(-1, width))
            last = vectors.shape[1] - width
            for start in {0, last // 2, last}:
                counts = (_unit(vectors[:, start : start + width]) @ given.T > _SAME).sum(axis=0)
                for (number, _), count in zip(wanted, counts.tolist(), strict=True):
                    if count:
                        found[number] = found.get(number, 0) + count
    return found


def _unit(rows: NDArray[Any]) -> NDArray[np.float64]:
    wide = rows.astype("<f8")
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.nan_to_num(wide / lengths, posinf=0, neginf=0)
    return unit
