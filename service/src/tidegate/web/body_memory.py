"""Memory for the bodies of requests that a replica has received and not yet answered."""

from collections import Counter

from tidegate.web.turns import Tenant

FREE_BYTES = 16 * 1024
"""First bytes of each body, which do not count. Small reports are therefore accepted while large bodies are refused."""


class BodyMemory:
    """The bytes of bodies beyond their first ``FREE_BYTES``, in total and by tenant.

    One tenant can use half of the memory, so that the others can still send large bodies.

    Args:
        max_bytes: Maximum number of bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._of: Counter[Tenant] = Counter()

    @property
    def held(self) -> int:
        """Number of bytes that count."""
        return self._held

    def body(self, tenant: Tenant) -> "HeldBody":
        """Return the memory of a new body of a tenant."""
        return HeldBody(self, tenant)

    def change(self, tenant: Tenant, by: int) -> bool:
        """Add a number of bytes and return True, or return False if they are over the limit."""
        if by > 0 and (self._held + by > self.max_bytes or self._of[tenant] + by > self.max_bytes // 2):
            return False
        self._held += by
        self._of[tenant] += by
        if not self._of[tenant]:
            del self._of[tenant]
        return True


class HeldBody:
    """The memory of one body."""

    __slots__ = ("_counted", "_memory", "_tenant")

    def __init__(self, memory: BodyMemory, tenant: Tenant) -> None:
        self._memory, self._tenant, self._counted = memory, tenant, 0

    def grow(self, size: int) -> bool:
        """Record that the body has ``size`` bytes, and return True. Return False if there is no memory for them."""
        counted = size - FREE_BYTES
        if counted <= self._counted:
            return True
        if not self._memory.change(self._tenant, counted - self._counted):
            return False
        self._counted = counted
        return True

    def release(self) -> None:
        """Free the memory."""
        if self._counted:
            self._memory.change(self._tenant, -self._counted)
            self._counted = 0
