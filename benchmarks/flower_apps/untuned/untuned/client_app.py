"""The ClientApp: one function for each exchange of a round."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from untuned.task import Net, head_gradient, load_data
from untuned.task import train as train_fn

app = ClientApp()


@app.query("head_gradient")
def gradient(msg: Message, context: Context):
    """The classifier's gradient on the local data."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = load_data(context.node_config["data"])
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    arrays = ArrayRecord(head_gradient(net, loader))
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = load_data(context.node_config["data"])
    config = context.run_config
    target = msg.content["target"].to_torch_state_dict()
    loss = train_fn(net, loader, config["local-epochs"], config["lr"], config["gamma"], target)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)
