"""Many nodes of Flower's network in one process: `python -m tests.soak.many_nodes FOLDER`.

Each node has its own key, its own TLS connection and its own site with rows and files, and speaks Flower's Fleet API to
a real server. What is left out is a process per node: two hundred SuperNodes would not fit into one machine's memory.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supernode.fleet_http_connection import http_request_response

from farfield.deployment.federation_file import read_federation
from tests.deployment.sites_in_process import Sites, context

#: Threads that look after the nodes, each after its share of them.
THREADS = 8
#: Seconds between two looks of a thread when none of its nodes had a message.
LOOK = 0.5


class Nodes(Sites):
    """Site apps that answer over real connections."""

    def start(self, node: int, name: str, **_: Any) -> None:
        self.start_with_rows(node, name, self.folder / name)
        self.node_of = {**getattr(self, "node_of", {}), name: node}

    def serve(self, address: str, authority: bytes, names: list[str]) -> None:
        """Answer until every site was told that the run is finished."""
        shares = [names[number::THREADS] for number in range(THREADS)]
        threads = [threading.Thread(target=self._look_after, args=(address, authority, share)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _look_after(self, address: str, authority: bytes, names: list[str]) -> None:
        with contextlib.ExitStack() as held:
            links = {}
            for name in names:
                key = load_ssh_private_key((self.folder / name / f"{name}.key").read_bytes(), password=None)
                keys = (key, key.public_key())
                links[name] = held.enter_context(http_request_response(address, False, authority, keys))  # type: ignore[arg-type]
            left = set(names)
            while left:
                worked = False
                for name in sorted(left):
                    worked |= self._answer(links[name], self.apps[self.node_of[name]])
                    if any("finished" in notice or "failed" in notice for notice in self.notices(name)):
                        left.discard(name)
                if not worked:
                    time.sleep(LOOK)

    def _answer(self, link: tuple[Any, ...], app: Any) -> bool:
        """Answer one message, if there is one."""
        _, receive, send, _, _, pull_object, push_object, confirm = link
        received = receive()
        if received is None:
            return False
        message, tree = received
        run = message.metadata.run_id
        ids = [each.object_id for each in iterate_object_tree(tree)]
        contents = pull_objects(ids, pull_object_fn=lambda id: pull_object(run, id))
        whole = inflate_object_from_contents(message.metadata.message_id, contents)
        assert isinstance(whole, Message)
        whole.metadata.__dict__["_message_id"] = message.metadata.message_id
        confirm(run, message.metadata.message_id)
        with _one_at_a_time:
            reply = app(whole, context())
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        push_object_contents_from_iterable(
            ((id, objects[id].deflate()) for id in wanted),
            push_object_fn=lambda id, content: push_object(run, session, id, content),
        )
        return True


#: Torch's settings are the process's: one phase at a time, as on a site's own machine.
_one_at_a_time = threading.Lock()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    about = json.loads((folder / "nodes.json").read_text())
    federation = read_federation(folder / "federation.toml")
    nodes = Nodes(folder, federation, about["names"])
    nodes.serve(federation.server, (folder / "certs" / "ca.crt").read_bytes(), about["names"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
