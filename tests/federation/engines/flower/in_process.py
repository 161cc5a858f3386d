"""Flower's messages without its processes: a Grid that hands every message straight to a node."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from farfield.algorithms import FedAvg, State, build
from farfield.federation.client import Client
from farfield.federation.client_state import SiteState
from farfield.federation.engines.flower.engine import FlowerFederation, Node
from farfield.federation.engines.flower.masked_sums import NodeSums
from farfield.federation.engines.flower.node import MethodCache
from farfield.federation.engines.flower.packing import pack, unpack
from farfield.federation.engines.flower.respond import Responder
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.population import Population
from farfield.federation.secure_sums.summing_step import SecureSum
from farfield.models import ModelSpec, build_model
from farfield.reproducibility.threads import one_thread
from farfield.tasks.task import Domain
from tests.toy import SPEC, population

#: What a test does to a reply on its way: other replies in its place, or none.
Tamper = Callable[[Message], Iterable[Message]]


class ToySite:
    """A site of a population that allows everything."""

    def __init__(self, clients: Population) -> None:
        self._clients = clients

    def allow(self, assignment: Assignment, phase: str, round: int) -> None:
        pass

    def client(self, assignment: Assignment, name: str, *, round: int, phase: str, state: dict[str, Tensor]) -> Client:
        return self._clients.client(int(name), seed=assignment.seed, round=round, phase=phase, state=state)


class ToyResponder(Responder):
    """A node that holds its state in memory."""

    def __init__(self, site: Any, methods: MethodCache) -> None:
        super().__init__(site, methods)
        self.state = SiteState()
        self.sums: dict[str, dict[str, Any]] = {}

    def open_sums(self, assignment: Assignment, name: str, summing: SecureSum) -> NodeSums:
        return NodeSums(self, name, assignment.run, least=summing.least)

    def load(self, run: str) -> dict[str, Any]:
        return json.loads(json.dumps(self.sums.get(run, {})))  # type: ignore[no-any-return]

    def save(self, run: str, record: Mapping[str, Any]) -> None:
        self.sums[run] = json.loads(json.dumps(record))

    @contextlib.contextmanager
    def held_state(self, run: str) -> Iterator[SiteState]:
        yield self.state


class InProcessGrid:
    """Nodes in this process, each with its state; `tamper` changes their replies."""

    def __init__(self, site: Any, make: Callable[..., Any] = build, tamper: Tamper = lambda reply: [reply]) -> None:
        # Flower's messages are made by a task; a test says which one it is.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.site, self.tamper = site, tamper
        self.methods = MethodCache(make)
        self.nodes: dict[int, ToyResponder] = {}
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.down: set[int] = set()
        self._ready: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            if message.metadata.dst_node_id in self.down:
                continue  # as Flower's own grid in memory does with a node that it does not know
            ids.append(message.metadata.message_id)
            self.sent.append(message)
            reply = self._reply(message)
            self.received.append(reply)
            self._ready += self.tamper(reply)
        return ids

    def _reply(self, message: Message) -> Message:
        node = self.nodes.setdefault(message.metadata.dst_node_id, ToyResponder(self.site, self.methods))
        try:
            return node.respond(message)
        except Exception as error:  # as Flower does with an app that raises
            return Message(Error(code=2, reason=str(error)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready, self._ready = self._ready, []
        return ready


def spec_for(algorithm: FedAvg) -> ModelSpec:
    return algorithm.model_for(SPEC)


def over_grid(
    name: str,
    algorithm: FedAvg,
    chosen: Sequence[Domain],
    *,
    rounds: int = 3,
    tamper: Tamper = lambda reply: [reply],
    make: Callable[..., Any] = build,
    **options: Any,
) -> tuple[FlowerFederation, InProcessGrid]:
    """A federation over a grid in this process, for toy domains."""
    spec = spec_for(algorithm)
    clients = population(chosen, pooled=algorithm.pooled)
    grid = InProcessGrid(ToySite(clients), make, tamper)
    assignment = Assignment(
        run="a-test",
        algorithm=name,
        settings=algorithm.params.model_dump(mode="json"),
        rounds=rounds,
        model=spec,
        seed=0,
    )
    nodes = [Node(100 + number, str(number), clients.domain_of(number)) for number in range(len(clients))]
    return FlowerFederation(grid, nodes, build_model(spec, 0).layout, assignment, **options), grid  # type: ignore[arg-type]


def train(fed: Any, algorithm: FedAvg, rounds: int = 3) -> State:
    state = algorithm.start(build_model(spec_for(algorithm), 0).state())
    with one_thread():
        for number in range(1, rounds + 1):
            fed.begin(number, range(fed.clients))
            state = algorithm.round(fed, state)
    return state


def rewritten(reply: Message, header: Mapping[str, Any] = {}, **groups: Any) -> Message:
    """A reply with other things in it."""
    read, held = unpack(reply.content)
    content = pack({**read, **header}, {**held, **groups})
    return Message(content, reply_to=answered(reply))


def answered(reply: Message) -> Message:
    """A message that this reply answers, for another reply to it."""
    stand_in = Message(reply.content, reply.metadata.src_node_id, "query.farfield")
    stand_in.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return stand_in


def of_client(reply: Message, client: str, phase: str = "train") -> bool:
    header = unpack(reply.content)[0]
    return bool(header["client"] == client and header["phase"] == phase)


def rewritten_problem(client: str, round: int) -> Tamper:
    """A client that has a problem in training in that round."""

    def change(reply: Message) -> list[Message]:
        hit = of_client(reply, client) and unpack(reply.content)[0]["round"] == round
        return [rewritten(reply, {"problem": "lost"}) if hit else reply]

    return change
