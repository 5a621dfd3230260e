"""Which actor runs which environments."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time

# From joining to opening the stream.
OPEN_WITHIN_SECS = 30.0


@dataclasses.dataclass(eq=False)
class Lease:
    """The right to send rows of a range of environments, held by one actor."""

    id: str
    holder: str  # its name and peer address
    first_env_id: int
    num_envs: int
    open_until: float  # time.monotonic(); not yet opened then, it is given up
    is_open: bool = False

    @property
    def envs(self) -> str:
        return range_text(self.first_env_id, self.num_envs)

    def __str__(self) -> str:
        return f"actor {self.holder} with environments {self.envs}"


class Leases:
    """The leases of environments 0, ..., num_envs - 1. Can be asked from any thread."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._lock = threading.Lock()
        self._by_id: dict[str, Lease] = {}

    def conflict(self, first_env_id: int, num_envs: int) -> Lease | None:
        """The lease that holds one of these environments, if any."""
        now = time.monotonic()
        with self._lock:
            for lease in list(self._by_id.values()):
                if not lease.is_open and now > lease.open_until:
                    del self._by_id[lease.id]
                elif (
                    lease.first_env_id < first_env_id + num_envs
                    and first_env_id < lease.first_env_id + lease.num_envs
                ):
                    return lease
        return None

    def grant(self, holder: str, first_env_id: int, num_envs: int) -> Lease:
        """A lease of environments that are free, as `conflict` has told."""
        open_until = time.monotonic() + OPEN_WITHIN_SECS
        # Whoever knows the id may use the lease.
        lease = Lease(secrets.token_hex(16), holder, first_env_id, num_envs, open_until)
        with self._lock:
            self._by_id[lease.id] = lease
        return lease

    def open(self, lease_id: str) -> Lease | None:
        """Opens a lease that was granted and is not open yet."""
        with self._lock:
            lease = self._by_id.get(lease_id)
            if lease is None or lease.is_open:
                return None
            lease.is_open = True
            return lease

    def release(self, lease: Lease) -> None:
        with self._lock:
            self._by_id.pop(lease.id, None)

    def missing_env_ids(self) -> list[int]:
        """Environments that no connected actor runs."""
        with self._lock:
            running = [lease for lease in self._by_id.values() if lease.is_open]
        missing = set(range(self._num_envs))
        for lease in running:
            missing.difference_update(
                range(lease.first_env_id, lease.first_env_id + lease.num_envs)
            )
        return sorted(missing)


def range_text(first: int, count: int) -> str:
    return f"{first}..{first + count - 1}" if count > 1 else str(first)
