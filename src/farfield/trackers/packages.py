"""The packages that trackers need, and the extras of farfield that install them."""

from __future__ import annotations

from importlib.util import find_spec

from farfield.errors import UserError

#: Packages that must be there, by extra. MLflow keeps runs in a database by SQLAlchemy and Alembic, which its small
#: distribution does not install.
PACKAGES = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


def need(extra: str) -> None:
    """Refuse a tracker whose package is missing, with the command that installs it."""
    missing = [package for package in PACKAGES[extra] if find_spec(package) is None]
    if missing:
        raise UserError(
            f"the tracker '{extra}' needs {' and '.join(missing)}, which is not installed; "
            f"pip install 'farfield[{extra}]'"
        )
