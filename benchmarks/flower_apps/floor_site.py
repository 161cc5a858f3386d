"""`farfield client` for the benchmark: `python floor_site.py FEDERATION SITE CA KEY`, or `... process STATE_FOLDER`.

Everything is farfield's own, but the site's app answers empty messages besides.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

HERE = Path(__file__).parent


def client(federation_file: Path, site_file: Path, authority: Path, key: Path) -> None:
    from farfield.deployment.federation_file import read_federation
    from farfield.deployment.manifest.approval import save_approval
    from farfield.deployment.manifest.manifest import make_manifest, own_spec
    from farfield.deployment.site.data import open_site
    from farfield.deployment.site.site_file import read_site
    from farfield.deployment.site.supervise import Credentials, check_server, join

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the processes below are ended, too
    federation, site = read_federation(federation_file), read_site(site_file)
    schema = open_site(site).schema
    folder = site_file.parent / "state"
    folder.mkdir()
    save_approval(folder, make_manifest(federation, schema=schema, spec=own_spec(federation, schema), role="train"))
    credentials = Credentials(authority, key)
    check_server(federation, credentials, seconds=120.0)
    join(federation, site.path, folder, credentials, worker=[sys.executable, __file__, "process"])


def process(folder: Path) -> None:
    from farfield.deployment.site import worker_process as site_process

    def with_empty_exchanges(app):
        sys.path.insert(0, str(HERE / "floor"))
        from empty import answer_at_once, exchanges

        sizes = json.loads((folder.parent.parent / "sizes.json").read_text())
        answer_at_once(app, exchanges(sizes["parameters"], sizes["head"]))
        return app

    site_process.main(folder, with_empty_exchanges)


if __name__ == "__main__":
    if sys.argv[1] == "process":
        process(Path(sys.argv[2]))
    else:
        client(*map(Path, sys.argv[1:]))
