"""Questions of a server to its sites."""

from __future__ import annotations

from pathlib import Path

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.schema.site_schema import read_site_schema
from farfield.deployment.server import joining
from farfield.deployment.server.ask_sites import Network
from tests.deployment.sites_in_process import Sites, ask


def test_a_schema_of_a_site_is_what_the_server_reads(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    value, _ = ask(sites, 1, "describe", joining.proposal(federation))
    assert read_site_schema(value["schema"]).rows == 30
    assert value["site"] == "amber"


def test_a_site_that_is_not_back_is_not_asked() -> None:
    answers = Network(None).ask([-1, -2], "describe", {})  # type: ignore[arg-type]
    assert {node: answer.problem for node, answer in answers.items()} == dict.fromkeys((-1, -2), "it is not connected")
