"""The ServerApp: two exchanges a round by `send_and_receive`, then the mean."""

import json
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from untuned.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    net = Net()
    vector_to_parameters(torch.from_numpy(np.load(config["initial"])), net.parameters())
    target = None
    while len(node_ids := list(grid.get_node_ids())) < config["num-nodes"]:
        time.sleep(1)
    seconds = []
    for server_round in range(1, config["num-server-rounds"] + 1):
        started = time.perf_counter()
        arrays = ArrayRecord(net.state_dict())
        grads = exchange(grid, node_ids, "query.head_gradient", server_round, {"arrays": arrays})
        fresh = {name: (1 - config["upsilon"]) * value for name, value in mean(grads).items()}
        target = fresh if target is None else {n: config["upsilon"] * target[n] + fresh[n] for n in fresh}
        trained = exchange(grid, node_ids, "train", server_round, {"arrays": arrays, "target": ArrayRecord(target)})
        net.load_state_dict(mean(trained))
        seconds.append(time.perf_counter() - started)
        Path(config["results"], "timings.json").write_text(json.dumps(seconds))
    np.save(Path(config["results"], "compared.npy"), parameters_to_vector(net.parameters()).detach().numpy())
    Path(config["results"], "finished").touch()


def exchange(grid: Grid, node_ids: list[int], message_type: str, server_round: int, content: dict) -> list:
    messages = [
        Message(content=RecordDict(content), message_type=message_type, dst_node_id=node, group_id=str(server_round))
        for node in node_ids
    ]
    replies = list(grid.send_and_receive(messages, timeout=600))
    if len(replies) < len(node_ids) or any(reply.has_error() for reply in replies):
        raise RuntimeError(f"not all nodes answered: {replies}")
    return [reply.content["arrays"].to_torch_state_dict() for reply in replies]


def mean(states: list[dict]) -> dict:
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}
