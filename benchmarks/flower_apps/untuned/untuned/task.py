"""The model, the data, and what a client does with them."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """An MLP of about 100,000 parameters: featurizer and linear classifier."""

    def __init__(self):
        super().__init__()
        self.featurizer = nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 256), nn.ReLU())
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.featurizer(x))


def load_data(path: str) -> DataLoader:
    with np.load(path) as file:
        dataset = TensorDataset(torch.from_numpy(file["x"]), torch.from_numpy(file["y"]))
    return DataLoader(dataset, batch_size=64, shuffle=True)


def head_gradient(net: Net, loader: DataLoader) -> dict[str, torch.Tensor]:
    """The gradient of the mean loss by the classifier."""
    total = {name: torch.zeros_like(value) for name, value in net.head.named_parameters()}
    for x, y in loader:
        loss = F.cross_entropy(net(x), y, reduction="sum") / len(loader.dataset)
        grads = torch.autograd.grad(loss, list(net.head.parameters()))
        for name, grad in zip(total, grads, strict=True):
            total[name] += grad
    return total


def train(net: Net, loader: DataLoader, epochs: int, lr: float, gamma: float, target: dict[str, torch.Tensor]) -> float:
    """Local training with the distance of the classifier's gradient to the target as a penalty."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            grads = torch.autograd.grad(loss, list(net.head.parameters()), create_graph=True)
            distance = sum((g - t).square().sum() for g, t in zip(grads, target.values(), strict=True))
            (loss + gamma / 2 * distance).backward()
            optimizer.step()
            running += loss.item()
    return running / (epochs * len(loader))
