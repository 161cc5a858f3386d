"""MNIST images for clients, from the data folder."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.speed.case import data_folder

FILE = "mnist.npz"


def mnist_clients(clients: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return the first images of MNIST as [clients, rows, 1, 28, 28] between 0 and 1, and their labels."""
    with np.load(data_folder(FILE) / FILE) as file:
        x, y = file["x_train"][: clients * rows], file["y_train"][: clients * rows]
    images = torch.from_numpy(x).float().div_(255).reshape(clients, rows, 1, 28, 28)
    return images, torch.from_numpy(y.astype(np.int64)).reshape(clients, rows)
