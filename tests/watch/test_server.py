from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

import farfield as ff
from farfield.watch.server import PAGE, WatchServer
from tests.toy import task
from tests.watch.serving import ask, served


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bench with its report."""
    folder = tmp_path_factory.mktemp("bench") / "b"
    ff.bench(task(), ["fedavg"], rounds=2, seeds=1, out=folder).report()
    (folder.parent / "secret.txt").write_text("not for the page")
    return folder


def test_the_page_its_parts_the_state_and_the_report_are_all_there_is(bench: Path) -> None:
    with served(bench) as server:
        for path in (*PAGE, "/state", "/report.html"):
            status, headers, body = ask(server.port, path)
            assert status == 200, path
            assert body
            assert headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert ask(server.port, "/report.html")[2] == (bench / "report.html").read_bytes()
        for path in (
            "/bench.toml", "/runs", "/runs/", "/looks.jsonl", "/../secret.txt", "/..%2fsecret.txt", "//etc/passwd",
            "/report.html/../bench.toml", "/page/index.html", "/watch.js/../../server.py", "/%2e%2e/secret.txt", "/.",
            "/runs/fedavg/a/seed-0/target.sealed.jsonl", "/state/", "/\\..\\secret.txt",
        ):  # fmt: skip
            status, _, body = ask(server.port, path)
            assert status == 404, path
            assert b"secret" not in body


def test_only_reading_is_possible(bench: Path) -> None:
    with served(bench) as server:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
            assert ask(server.port, "/state", method=method)[0] == 501
        status, headers, body = ask(server.port, "/state", method="HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 100


def test_the_page_may_load_nothing_from_elsewhere_and_holds_no_inline_script_or_style(bench: Path) -> None:
    with served(bench) as server:
        _, headers, body = ask(server.port, "/")
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert b"<style" not in body
    assert b"style=" not in body
    assert b"http:" not in body
    assert b"https:" not in body


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("127.0.0.1:{port}", True),
        ("localhost:{port}", True),
        ("LOCALHOST:{port}", True),
        ("[::1]:{port}", True),
        ("evil.example:{port}", False),
        ("127.0.0.1.evil.example:{port}", False),
        ("localhost.evil.example:{port}", False),
        ("192.168.1.5:{port}", False),
        ("127.0.0.1", False),
        ("127.0.0.1:1", False),
        ("user@127.0.0.1:{port}", False),
        ("127.0.0.1:{port}/x", False),
        ("127.0.0.1:{port}0000", False),
        ("", False),
    ],
)
def test_a_request_under_another_name_is_refused(bench: Path, header: str, known: bool) -> None:
    with served(bench) as server:
        for path in ("/", "/state", "/report.html"):
            status, _, body = ask(server.port, path, {"Host": header.format(port=server.port)})
            assert status == (200 if known else 421)
            assert known or b"toy" not in body


def test_on_the_network_addresses_and_own_names_are_right_and_foreign_names_are_not(tmp_path: Path) -> None:
    with WatchServer(tmp_path, host="0.0.0.0", port=0) as server:
        assert server.knows(f"192.168.1.5:{server.port}")
        assert server.knows(f"localhost:{server.port}")
        assert server.knows(f"{socket.gethostname()}:{server.port}")
        assert not server.knows(f"evil.example:{server.port}")
        assert not server.knows(None)
        assert server.url == f"http://127.0.0.1:{server.port}/"


def test_an_unchanged_state_is_not_sent_again(bench: Path) -> None:
    with served(bench) as server:
        _, headers, body = ask(server.port, "/state")
        assert json.loads(body)["status"] == "finished"
        again, _, empty = ask(server.port, "/state", {"If-None-Match": headers["etag"]})
        assert (again, empty) == (304, b"")
        assert ask(server.port, "/state", {"If-None-Match": '"other"'})[0] == 200


def test_a_port_that_is_taken_is_one_sentence_and_without_one_the_next_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WatchServer(tmp_path, port=0) as first:
        with pytest.raises(
            ff.UserError, match=f"cannot listen on 127.0.0.1, port {first.port}: .*choose another --port"
        ):
            WatchServer(tmp_path, port=first.port)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            free = probe.getsockname()[1]
        monkeypatch.setattr("farfield.watch.server.PORTS", (first.port, free))
        with WatchServer(tmp_path) as second:
            assert second.port == free
    with pytest.raises(ff.UserError, match="70000 is not a valid port"):
        WatchServer(tmp_path, port=70000)


def test_the_report_is_not_served_before_the_bench_has_ended(bench: Path, tmp_path: Path) -> None:
    ff.bench(task(), ["fedavg"], rounds=2, seeds=1, out=tmp_path / "b").report()
    (result,) = (tmp_path / "b" / "runs" / "fedavg" / "a").rglob("result.json")
    result.unlink()
    with served(tmp_path / "b") as server:
        assert ask(server.port, "/report.html")[0] == 404
        assert not json.loads(ask(server.port, "/state")[2])["report"]


@pytest.mark.parametrize(("error", "told"), [(BrokenPipeError, False), (ZeroDivisionError, True)])
def test_only_lost_connections_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: type[Exception], told: bool
) -> None:
    with WatchServer(tmp_path, port=0) as server:
        try:
            raise error
        except error:
            server.handle_error(None, ("127.0.0.1", 1))
    assert (error.__name__ in capsys.readouterr().err) == told
