"""The area under the ROC curve, as a function of scores alone."""

from __future__ import annotations

import torch
from torch import Tensor


def auroc(scores: Tensor, labels: Tensor) -> float | None:
    """Return the chance that a row of a class scores higher for it than a row of another class; a tie counts half.

    `scores` is [n, K] with one column per class, or [n] (or [n, 1]) with the score of class 1. With two classes it is
    the AUROC of class 1, else the mean over the one-versus-rest problems that have positives and negatives. None where
    there is no such class.
    """
    table = scores.double()
    table = table[:, None] if table.dim() == 1 else table
    if table.shape[1] == 1:
        table = torch.cat([-table, table], dim=1)
    if table.shape[1] == 2:
        columns, classes = (table[:, 1] - table[:, 0])[:, None], torch.tensor([1])
    else:
        columns, classes = table - table.logsumexp(1, keepdim=True), torch.arange(table.shape[1])
    positive = labels[:, None] == classes
    counts = positive.sum(0)
    defined = (counts > 0) & (counts < len(labels))
    if not bool(defined.any()):
        return None
    columns, positive, counts = columns[:, defined], positive[:, defined], counts[defined].double()
    ordered = columns.T.contiguous().sort(dim=1).values
    below = torch.searchsorted(ordered, columns.T.contiguous(), right=False)
    up_to = torch.searchsorted(ordered, columns.T.contiguous(), right=True)
    middle_ranks = (below + up_to + 1).double() / 2
    of_positives = (middle_ranks * positive.T).sum(1)
    areas = (of_positives - counts * (counts + 1) / 2) / (counts * (len(labels) - counts))
    return float(areas.mean())
