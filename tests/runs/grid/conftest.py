from tests.cli.conftest import farfield

__all__ = ["farfield"]
