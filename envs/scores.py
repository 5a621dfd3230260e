"""Reference scores, by which an agent's score in a game is told as a share of a human's."""

from __future__ import annotations

from typing import NamedTuple


class ReferenceScores(NamedTuple):
    """Returns of an episode in one game.

    100 * (score - random) / (human - random) is the human-normalised score.
    """

    random: float
    human: float
