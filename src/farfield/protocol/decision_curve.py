"""What acting on a model's scores is worth (decision curve analysis: Vickers and Elkin, Medical Decision Making 2006).

Whoever acts at a score of at least t says that one missed event weighs as much as (1 - t) / t needless actions. Net
benefit counts events acted upon minus needless actions at that exchange rate, per row. A model is worth using at t if
it beats acting on everybody and acting on nobody, whose net benefit is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.075, *(round(0.1 + 0.05 * step, 2) for step in range(17)), 0.95, 0.99)


def decision_curve(probabilities: NDArray[np.float64], events: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the net benefit of acting on rows with a probability of at least t, and of acting on all rows."""
    n = probabilities.size
    thresholds = np.array(THRESHOLDS)
    rate = thresholds / (1.0 - thresholds)
    hits = events.sum() - np.searchsorted(np.sort(probabilities[events]), thresholds, "left")
    needless = n - events.sum() - np.searchsorted(np.sort(probabilities[~events]), thresholds, "left")
    share = float(events.mean())
    return {
        "thresholds": list(THRESHOLDS),
        "net_benefit": ((hits - needless * rate) / n).tolist(),
        "treat_all": (share - (1.0 - share) * rate).tolist(),
    }
