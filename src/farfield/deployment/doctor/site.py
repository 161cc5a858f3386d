"""All checks of a site, in the order in which a failure explains the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from farfield.deployment.doctor.certificates import check_site_credentials
from farfield.deployment.doctor.check import Check, failed, ok, warning
from farfield.deployment.doctor.machine import check_folder, check_umask, check_versions
from farfield.deployment.doctor.network import check_network
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.schema.site_schema import TableSite
from farfield.deployment.site.site_file import SiteFile
from farfield.errors import UserError


def check_site(
    federation: FederationFile,
    site: SiteFile,
    state: Path,
    *,
    authority: Path | None,
    key: Path | None,
    insecure: bool = False,
) -> Iterator[Check]:
    """Check a site before it joins. Nothing leaves the machine but a request that asks whether the server is ready."""
    yield from check_versions()
    usable = True
    if not insecure:
        for check in check_site_credentials(authority, key, site.name):
            usable = usable and (check.name, check.status) != ("authority", "failed")
            yield check
    if usable:
        yield from check_network(federation, None if insecure else authority)
    yield from check_folder("state", state, private=True)
    yield check_umask()
    yield from check_data(federation, site, state)


def check_data(federation: FederationFile, site: SiteFile, state: Path) -> Iterator[Check]:
    """Check that the rows can be read, and that what leaves was approved. No cell is printed."""
    from farfield.deployment.manifest.approval import changes, is_approved
    from farfield.deployment.manifest.manifest import make_manifest, own_spec
    from farfield.deployment.site.data import open_site

    try:
        data = open_site(site)
    except UserError as error:
        yield failed("data", str(error))
        return
    except OSError as error:
        yield failed("data", f"'{error.filename}' cannot be read: {error.strerror}")
        return
    schema = data.schema
    if isinstance(schema, TableSite):
        levels = schema.label.levels
        what = f", {len(schema.columns)} columns, label '{schema.label.name}'"
        what += f" with {len(levels)} values" if levels is not None else ""
    else:
        what = f" of shape {schema.shape}" + (f", {len(schema.classes)} classes" if schema.classes else "")
    yield ok("data", f"{schema.rows} rows of '{site.name}' can be read{what}")
    for note in data.notes:
        yield warning("data", note)
    try:
        manifest = make_manifest(federation, schema=schema, spec=own_spec(federation, schema), role=site.role)
    except UserError as error:
        yield failed("method", str(error))
        return
    if is_approved(state, manifest):
        yield ok("approval", "what leaves this site was approved, and has not changed")
        return
    before = changes(state, manifest) if state.exists() else ""
    why = f"an earlier approval does not cover it: {before}" if before else "what leaves this site is not approved yet"
    yield warning("approval", f"{why}; read it with 'farfield client … --show', approve it with --accept")
