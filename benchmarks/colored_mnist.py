"""FedILC's table 2 and table 6, Color-MNIST, from the rows of a bench.

    farfield bench --preset fedilc/colored-mnist --json rows.json
    python benchmarks/colored_mnist.py rows.json

Prints loss and accuracy on the held-out domain, mean and standard deviation over seeds, under every selection rule.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

#: The paper's rows: loss of table 2 and accuracy of table 6, where the loss on the target was lowest.
PAPER = {
    "fedsgd": ("FedSGD", "0.566±0.009", "0.781±0.001"),
    "fedilc-geometric": ("Geometric", "0.562±0.006", "0.781±0.003"),
    "fedilc-fishr": ("FedCurv", "0.559±0.003", "0.780±0.004"),
    "fedilc-inter-geo": ("Fishr+Inter-Geo", "0.542±0.006", "0.790±0.002"),
    "fedilc-intra-arith": ("Fishr+Intra-Arith", "0.555±0.004", "0.783±0.005"),
    "fedilc-intra-geo": ("Fishr+Intra-Geo", "0.552±0.005", "0.779±0.002"),
}


def spread(values: list[float]) -> str:
    return f"{fmean(values):.3f}" + (f"±{stdev(values):.3f}" if len(values) > 1 else "")


def _range(rounds: list[int]) -> str:
    return str(rounds[0]) if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"


def main(path: Path) -> None:
    rows = json.loads(path.read_text())
    by_method = defaultdict(list)
    for row in rows:
        by_method[row["algorithm"]].append(row["selection"])
    rules = list(next(iter(by_method.values()))[0])
    for rule in rules:
        print(f"\nrounds chosen by {rule}\n")
        # The paper's numbers are beside the rule that it chose by, and beside no other.
        print("| method | paper's name | seeds | rounds | loss | paper | accuracy | paper |")
        print("|---|---|---|---|---|---|---|---|")
        for method, chosen in by_method.items():
            name, loss, accuracy = PAPER.get(method, ("", "", ""))
            if rule != "oracle-loss":
                loss = accuracy = ""
            rounds = [selection[rule]["round"] for selection in chosen]
            print(
                f"| `{method}` | {name} | {len(chosen)} | {_range(rounds)} "
                f"| {spread([s[rule]['loss'] for s in chosen])} | {loss} "
                f"| {spread([s[rule]['accuracy'] for s in chosen])} | {accuracy} |"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
