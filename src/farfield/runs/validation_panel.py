"""The clients that are asked for validation figures, and the domains that a round must have to be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from farfield.runs.validation_by_domain import pooled_name


class ValidationPanel:
    """The clients that validate. Some can be left out in the course of a run: by its operator, or for their replies."""

    def __init__(self, clients: Sequence[int], domain_of: Mapping[int, str], pooled: bool = False) -> None:
        """`pooled` says that the figures of all clients arrive as one, as in a secure sum."""
        self.clients = list(clients)
        self._domain_of, self._pooled = {client: domain_of[client] for client in clients}, pooled

    @property
    def domains(self) -> frozenset[str]:
        """The names under which a complete round has figures."""
        if self._pooled:
            return frozenset({pooled_name(len(self.clients), len(self.clients))})
        return frozenset(self._domain_of[client] for client in self.clients)

    def leave_out(self, gone: Collection[int]) -> bool:
        """Ask these clients no more, as long as there are others. Return whether anybody was asked before."""
        left = [client for client in self.clients if client not in gone]
        if not left or len(left) == len(self.clients):
            return False
        self.clients = left
        return True
