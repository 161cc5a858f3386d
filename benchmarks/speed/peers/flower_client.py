"""The ClientApp of `flower_rounds`, in a module that Ray's processes can import."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.speed.peers.workload import Workload, network, train

#: The variable that names the workload's folder.
FOLDER = "FARFIELD_SPEED_WORKLOAD"

app = ClientApp()


@cache
def workload_here() -> Workload:
    """The workload, read once per process: the bare loop has its rows in memory, too."""
    torch.set_num_threads(1)
    return Workload.load(Path(os.environ[FOLDER]))


@app.train()
def train_client(message: Message, context: Context) -> Message:
    workload = workload_here()
    client = int(context.node_config["partition-id"])
    model = network(workload.network)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
    train(model, workload, client, int(message.content["config"]["server-round"]), optimizer)
    metrics = MetricRecord({"num-examples": workload.x.shape[1]})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)
