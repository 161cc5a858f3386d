"""The manifest that a site's operator has approved, kept in the site's state folder with its hash.

save_approval(folder, manifest)      # after the operator agreed
is_approved(folder, manifest)        # False for any other manifest, however little it differs
load_approval(folder)                # what the site's process enforces, see `enforce`
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from farfield.deployment.manifest.manifest import Manifest
from farfield.errors import UserError
from farfield.records import difference
from farfield.records.atomic import write_json

APPROVAL = "approval.json"


class ApprovalError(UserError):
    """There is no approval that can be used."""


def save_approval(folder: Path, manifest: Manifest) -> None:
    """Store the manifest that the site's operator has approved."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / APPROVAL, {"digest": manifest.digest, "manifest": manifest.model_dump(mode="json")})


def is_approved(folder: Path, manifest: Manifest) -> bool:
    """Return whether this manifest is the approved one."""
    try:
        return load_approval(folder).digest == manifest.digest
    except ApprovalError:
        return False


def changes(folder: Path, manifest: Manifest) -> str:
    """Return how a manifest differs from an earlier approval, in one phrase; empty if there was none."""
    try:
        before = load_approval(folder)
    except ApprovalError:
        return ""
    old, new = (each.model_dump(mode="json", exclude={"entries"}) for each in (before, manifest))
    return difference(old, new) or "what is sent has changed"


def load_approval(folder: Path) -> Manifest:
    """Load the approved manifest. Raises ApprovalError if there is none, or if the file has changed since."""
    path = folder / APPROVAL
    try:
        content = json.loads(path.read_bytes())
        manifest = Manifest.model_validate(content["manifest"])
        known = content["digest"]
    except FileNotFoundError:
        raise ApprovalError(f"nothing is approved in '{folder}'; show the manifest and approve it first") from None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError, ValidationError):
        raise ApprovalError(f"the approval '{path}' cannot be read; approve the manifest again") from None
    if known != manifest.digest:
        raise ApprovalError(f"the approval '{path}' was changed after it was given; approve the manifest again")
    return manifest
