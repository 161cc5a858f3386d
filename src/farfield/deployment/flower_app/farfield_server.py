"""The ServerApp that Flower starts: farfield's own, as it is installed here."""

from farfield.deployment.server.server_app import app

__all__ = ["app"]
