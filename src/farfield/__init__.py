"""Farfield: federated learning that holds up on clients it has never seen.

import farfield as ff
result = ff.bench("rotated-digits", algorithms=["fedavg", "fedprox"], seeds=3)
result.table()
result.report("report.html")

Importing the package is quick: the module behind a name, and torch with it, is imported when the name is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farfield.algorithms import FedAvg, register
    from farfield.diagnose.diagnosis import diagnose
    from farfield.errors import UserError
    from farfield.models import ModelSpec
    from farfield.runs.bench import bench
    from farfield.runs.callbacks import Callback
    from farfield.runs.grid.sweep import SweepResult, sweep
    from farfield.runs.result import BenchResult
    from farfield.runs.tuning.tune import TuningResult, tune
    from farfield.runs.variants import method
    from farfield.tasks import Domain, Task, task_from_arrays
    from farfield.tasks import load_folder as read_folder
    from farfield.tasks import load_table as read_table
    from farfield.trained.evaluation import Evaluation, evaluate
    from farfield.trained.model_folder import load_model
    from farfield.trained.training import train

    __version__: str

#: Where each public name is defined. The imports above say the same to type checkers and editors.
_DEFINED_IN = {
    "BenchResult": "farfield.runs.result:BenchResult",
    "Callback": "farfield.runs.callbacks:Callback",
    "Domain": "farfield.tasks:Domain",
    "Evaluation": "farfield.trained.evaluation:Evaluation",
    "FedAvg": "farfield.algorithms:FedAvg",
    "ModelSpec": "farfield.models:ModelSpec",
    "SweepResult": "farfield.runs.grid.sweep:SweepResult",
    "Task": "farfield.tasks:Task",
    "TuningResult": "farfield.runs.tuning.tune:TuningResult",
    "UserError": "farfield.errors:UserError",
    "bench": "farfield.runs.bench:bench",
    "evaluate": "farfield.trained.evaluation:evaluate",
    "load_model": "farfield.trained.model_folder:load_model",
    "method": "farfield.runs.variants:method",
    "read_folder": "farfield.tasks:load_folder",
    "read_table": "farfield.tasks:load_table",
    "register": "farfield.algorithms:register",
    "sweep": "farfield.runs.grid.sweep:sweep",
    "task_from_arrays": "farfield.tasks:task_from_arrays",
    "train": "farfield.trained.training:train",
    "tune": "farfield.runs.tuning.tune:tune",
}
#: Reachable as attributes after `import farfield`, as if they had been imported with it.
_MODULES = (
    "algorithms",
    "diagnose",
    "errors",
    "federation",
    "math",
    "models",
    "protocol",
    "records",
    "report",
    "runs",
    "tasks",
    "trackers",
    "trained",
)

__all__ = [
    "BenchResult",
    "Callback",
    "Domain",
    "Evaluation",
    "FedAvg",
    "ModelSpec",
    "SweepResult",
    "Task",
    "TuningResult",
    "UserError",
    "bench",
    "diagnose",
    "evaluate",
    "load_model",
    "method",
    "read_folder",
    "read_table",
    "register",
    "sweep",
    "task_from_arrays",
    "train",
    "tune",
]

# Hidden from type checkers, so that they report a name that does not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name or a module when it is first used."""
        from pkgutil import resolve_name

        if name in _DEFINED_IN:
            value = resolve_name(_DEFINED_IN[name])
        elif name in _MODULES:
            value = resolve_name(f"farfield.{name}")
        elif name == "__version__":
            from importlib.metadata import version

            value = version("farfield")
        else:
            raise AttributeError(f"module 'farfield' has no attribute '{name}'")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
