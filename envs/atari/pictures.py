"""Pictures of the emulator's screens, averaged over areas, in whole numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

SIZE = 84  # height and width of the pictures
SCREEN = (210, 160)  # height and width of a screen


def _coverage(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of `size` pixels each of SIZE covers, int `[k, SIZE]`, and how much of them, uint16.

    The smallest whole numbers in the right proportion stand for how much.
    """
    ends = np.arange(1, SIZE + 1) * size  # a pixel is SIZE long, one of the picture `size`
    starts = ends - size
    most = int(np.max(-(-ends // SIZE) - starts // SIZE))
    covered = starts // SIZE + np.arange(most)[:, None]
    overlap = np.minimum(ends, (covered + 1) * SIZE) - np.maximum(starts, covered * SIZE)
    unit = SIZE // Fraction(size, SIZE).denominator
    return np.minimum(covered, size - 1), (np.maximum(overlap, 0) // unit).astype(np.uint16)


_ROWS, _COLUMNS = _coverage(SCREEN[0]), _coverage(SCREEN[1])
_AREA = int(_ROWS[1][:, 0].sum() * _COLUMNS[1][:, 0].sum())


def picture(screens: np.ndarray) -> np.ndarray:
    """Pictures uint8 `[n, 84, 84]` of screens uint8 `[n, 210, 160]`; halves are rounded up."""
    rows = sum(screens.take(i, axis=1) * share[:, None] for i, share in zip(*_ROWS, strict=True))
    total = sum(rows.take(i, axis=2) * share for i, share in zip(*_COLUMNS, strict=True))
    # At most 255 * 200 + 100, which uint16 holds.
    return ((total + _AREA // 2) // _AREA).astype(np.uint8)
