"""Instructions in words as numbers for a network."""

from __future__ import annotations

import functools
import hashlib
import re

import numpy as np

from seed_rl.specs import ArraySpec

MAX_WORDS = 16
_NUM_BUCKETS = 4096  # the levels know a few hundred words: some 5 pairs of 200 share a number

SPEC = ArraySpec((MAX_WORDS,), "int32", 0, _NUM_BUCKETS)


@functools.lru_cache(maxsize=4096)
def encode(text: str) -> np.ndarray:
    """A number in 1.._NUM_BUCKETS for each of the first 16 words, int32 `[16]`, filled up with 0.

    The same on every machine and in every process: weights go with the numbers. Upper case and
    punctuation make no difference. The array is shared, and can't be written to.
    """
    words = re.findall(r"\w+", text.lower())[:MAX_WORDS]
    ids = np.zeros(MAX_WORDS, np.int32)
    ids[: len(words)] = [_bucket(word) for word in words]
    ids.flags.writeable = False
    return ids


def _bucket(word: str) -> int:
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % _NUM_BUCKETS
