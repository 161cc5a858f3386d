"""Real deployments on loopback: SuperLink, SuperNodes, TLS and keys. `make deployment` runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farfield.deployment.credentials.create import make_authority, make_node_key, make_server_certificate
from tests.deployment.network import SITES, Deployment, arrays, as_task, deployment, trained_here

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

#: The methods whose final models must have the same bytes on every engine.
METHODS = ("fedavg", "fediir", "fediir+fedomg", "scaffold", "fedilc-inter-geo", "fedcir", "fedloe-irm")


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_deployment_gives_the_same_bytes_as_one_machine(tmp_path: Path, algorithm: str) -> None:
    with deployment(tmp_path / "net", algorithm=algorithm, rounds=3) as net:
        result = net.run()
    assert result["model_sha256"] == trained_here(tmp_path / "local", algorithm, 3)
    assert result["engine"] == "flower deployment"
    local = json.loads((tmp_path / "local" / "run" / "result.json").read_text())
    for count in ("bytes_up_by_phase", "bytes_down_by_phase", "local_steps", "samples"):
        assert result[count] == local[count], count
    assert not net.events()
    assert (net.out / "model.safetensors").exists()


def test_a_site_that_only_evaluates_is_measured_as_a_held_out_domain_is(tmp_path: Path) -> None:
    import farfield as ff
    from farfield.records.sealed import open_sealed

    everyone = (*SITES, "dune")
    with deployment(tmp_path / "net", algorithm="fediir", rounds=2, evaluating=1, evaluate_every=1) as net:
        net.add_site("dune", *arrays(everyone)["dune"], role="evaluate")
        server = net.server()
        clients = [net.client(name) for name in everyone]
        for process in (server, *clients):
            net.wait(process)
    bench = ff.bench(
        as_task(arrays(everyone)),
        ["fediir"],
        held_out=["dune"],
        seeds=1,
        rounds=2,
        evaluate_every=1,
        parallel=1,
        out=tmp_path / "bench",
    )
    (row,) = bench.rows
    assert net.result()["model_sha256"] == row["model_sha256"]
    assert open_sealed(net.out / "run") == open_sealed(tmp_path / "bench" / "runs" / "fediir" / "dune" / "seed-0")


def test_a_site_that_is_killed_in_a_round_is_missed_and_can_return(tmp_path: Path) -> None:
    # More rounds than there is time for: how soon Flower notices that a node is gone does not depend on their length.
    with deployment(tmp_path / "net", algorithm="scaffold", rounds=500, deadline=15.0) as net:
        server = net.server()
        clients = {name: net.client(name) for name in SITES}
        net.until("a round", lambda: _has_phase(net, "cedar", 2))
        net.kill(clients["cedar"])
        net.until("a round without it", lambda: any(e["kind"] == "reply-dropped" for e in net.events()))
        net.client("cedar")  # which Flower lets in once it has noticed that the other is gone
        net.until("its return", lambda: "'cedar' is connected again" in net.said("server"))
        begun = max(row["round"] for row in net.activity("server") if row["kind"] == "round") + 1
        net.until("a round with it", lambda: _has_phase(net, "cedar", begun))
        server.send_signal(signal.SIGTERM)
        net.wait(server, code=0)
    dropped = {e["client"] for e in net.events() if e["kind"] == "reply-dropped"}
    assert dropped == {2}, "the other sites took part in every round"
    for said in (
        "site 'cedar' is not connected",
        "(2 of 3 sites connected)",
        "site 'cedar' is connected again",
        "stopped",
    ):
        assert said in net.said("server")


def _has_phase(net: Deployment, site: str, round: int) -> bool:
    return any(row["kind"] == "phase" and row["round"] >= round for row in net.activity(site))


@pytest.mark.parametrize("algorithm", ["scaffold", "fediir"])
def test_a_killed_server_goes_on_to_the_same_bytes(tmp_path: Path, algorithm: str) -> None:
    with deployment(tmp_path / "net", algorithm=algorithm, rounds=5) as net:
        server = net.server()
        clients = [net.client(name) for name in SITES]
        net.until("two rounds", lambda: any(r["kind"] == "round" and r["round"] >= 2 for r in net.activity("server")))
        net.kill(server)
        assert not (net.out / "run" / "result.json").exists()
        net.until("the end of its processes", lambda: _port_is_free(net))
        refused = net.server()
        net.wait(refused, code=2)
        assert "--resume" in net.said("server")
        net.file.write_text("quorum = 0.6\n" + net.file.read_text())  # what may change when a run is resumed
        resumed = net.server("--resume")
        for process in (resumed, *clients):
            net.wait(process)
        assert ", going on after round " in net.said("server")
    assert net.result()["model_sha256"] == trained_here(tmp_path / "local", algorithm, 5)


def _port_is_free(net: Deployment) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", net.port)) != 0


def test_nobody_gets_in_without_a_known_key_and_a_trusted_certificate(tmp_path: Path) -> None:
    """By our command and, past all of its checks, by Flower's own."""
    with deployment(tmp_path / "net", sites=("amber",)) as net:
        made = arrays(("amber", "stranger"))["stranger"]
        net.add_site("stranger", *made, known=False)
        net.add_site("fooled", *made)
        other = tmp_path / "other"
        other.mkdir()
        make_authority(other, 2)
        make_server_certificate(other, ["127.0.0.1"], 2)
        net.file.write_text(net.file.read_text().replace("sites = 1", "sites = 2"))
        server = net.server()
        net.until("listening", lambda: not _port_is_free(net) and "sites can connect" in net.said("server"))

        unknown = net.client("stranger")
        net.wait(unknown, code=2)
        assert "does not know this site's key" in net.said("stranger")
        net.until("a word at the server", lambda: "a site at 127.0.0.1 was not let in" in net.said("server"))

        untrusted = net.client("fooled", "--ca", str(other / "ca.crt"))
        net.wait(untrusted, code=2)
        assert "is not trusted" in net.said("fooled")

        make_node_key(other, "forged")
        at = f"127.0.0.1:{net.port}"
        ca = ["--root-certificates", str(net.certs / "ca.crt")]
        attempts = {
            "no key": ca,
            "an unknown key": [*ca, "--auth-supernode-private-key", str(other / "forged.key")],
            "another authority": [
                "--root-certificates", str(other / "ca.crt"),
                "--auth-supernode-private-key", str(net.folder / "fooled" / "fooled.key"),
            ],
            "no TLS": ["--insecure"],
        }  # fmt: skip
        for what, options in attempts.items():
            _flower_gets_nowhere(net, what, ["--superlink", at, *options])
        _nobody_registers_a_key(net, other)
        net.until("the run", lambda: any(r["kind"] == "started" for r in net.activity("server")))
        assert not [r for r in net.activity("server") if r["kind"] == "joined"]
        server.send_signal(signal.SIGTERM)
        net.wait(server, code=0)


def _flower_gets_nowhere(net: Deployment, what: str, options: list[str]) -> None:
    from farfield.deployment.flower.processes import environment
    from tests.deployment.network import free_port

    command = ["flower-supernode", *options, "--host", "127.0.0.1", "--port", str(free_port()), "--max-retries", "1"]
    log = net.folder / "intruder.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment(net.folder / "home"))
    try:
        code = process.wait(40)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        process.kill()
        process.wait()
    assert code != 0, f"a node with {what} was let in: {log.read_text()}"
    assert "SuperNode ID" not in log.read_text(), f"a node with {what} was let in"


def _nobody_registers_a_key(net: Deployment, other: Path) -> None:
    """Flower's own command, at the server's machine and with the right authority, but without the operator's secret."""
    from farfield.deployment.flower.processes import environment

    home = net.folder / "home"
    home.mkdir(exist_ok=True)
    link = f'[superlink.x]\naddress = "127.0.0.1:{net.port}"\nroot-certificates = "{net.certs / "ca.crt"}"\n'
    (home / "config.toml").write_text(link)
    for arguments in (["supernode", "register", str(other / "forged.pub"), "x"], ["supernode", "list", "x"]):
        done = subprocess.run(
            ["flwr", *arguments], env=environment(home), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode != 0, done.stdout
        assert "for the server's operator alone" in done.stdout + done.stderr


def test_sites_that_do_not_fit_are_told_what_to_mend_and_can_come_back(tmp_path: Path) -> None:
    with deployment(tmp_path / "net", sites=("amber", "birch"), rounds=1) as net:
        x, y = arrays()["cedar"]
        net.add_site("cedar", x[:, :4], y)
        net.file.write_text(net.file.read_text().replace("sites = 2", "sites = 3"))
        server = net.server()
        clients = [net.client(name) for name in ("amber", "birch")]
        net.until("two sites", lambda: sum(r["kind"] == "joined" for r in net.activity("server")) == 2)
        odd = net.client("cedar")
        net.wait(odd, code=2)
        assert "shape" in net.said("cedar")
        assert "'cedar' cannot take part" in net.said("server")

        twin = net.folder / "cedar" / "site.toml"
        twin.write_text(twin.read_text().replace('"cedar"', '"amber"'))
        second = net.client("cedar")
        net.wait(second, code=2)
        assert "it calls itself 'amber'" in net.said("cedar")

        import numpy as np

        twin.write_text(twin.read_text().replace('"amber"', '"cedar"'))
        np.savez(net.folder / "cedar" / "rows.npz", x=x, y=y)
        mended = net.client("cedar")
        for process in (server, *clients, mended):
            net.wait(process)
    assert net.result()["clients"] == 3


def test_what_a_site_did_not_approve_is_refused(tmp_path: Path) -> None:
    """The site has approved FedAvg; its server runs SCAFFOLD, which sends a control variate as well."""
    with deployment(tmp_path / "net", algorithm="fedavg") as net:
        honest = net.file.read_text()
        changed = net.folder / "changed.toml"
        changed.write_text(honest.replace("fedavg", "scaffold"))
        clients = [net.client(name) for name in SITES]
        net.file, kept = changed, net.file
        server = net.server("--wait", "45")
        net.file = kept
        net.wait(server, code=2)
        for client in clients:
            net.wait(client, code=2)  # the server tells them that its run has failed
    assert "approved another method than the server asks for: 'fedavg'" in " ".join(net.said("server").split())
    assert "not all sites are there" in net.said("server")


def test_an_insecure_server_is_for_this_machine_alone(tmp_path: Path) -> None:
    with deployment(tmp_path / "net") as net:
        net.file.write_text(net.file.read_text().replace("127.0.0.1", "192.0.2.7"))
        for arguments in (
            ["server", str(net.file), "--out", "o"],
            ["client", str(net.file), str(net.folder / "amber")],
        ):
            done = subprocess.run(
                [sys.executable, "-m", "farfield", *arguments, "--insecure"],
                capture_output=True,
                text=True,
                check=False,
                cwd=tmp_path,
            )
            assert done.returncode == 2
            assert "192.0.2.7" in done.stderr
            assert "--insecure is for" in done.stderr
