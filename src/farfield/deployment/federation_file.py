"""A federation's file, `federation.toml`: its server's operator writes it, and sends it to the sites.

name = "heart"                 # letters, digits, '-' and '_'
server = "127.0.0.1:9443"      # where sites connect; [::1]:9443 for IPv6
algorithm = "fediir"           # a method, or a composition such as "fediir+fedomg"
rounds = 20                    # left out, what suits the data
sites = 3                      # training sites that are waited for
evaluating = 1                 # sites that are only measured
seed = 0
quorum = 0.5                   # share of the asked sites that must answer in time
deadline = 600                 # seconds that a phase may take
evaluate_every = 1             # rounds between evaluations; left out, 1
cohort = 2                     # training sites in a round; left out, all of them
diagnose = true                # sites tell moments and a linear head before training; left out, they do not
[set]                          # settings of the method and the model, as after --set
lr = 0.05
model.hidden = [32]
bound = "median"               # cut updates much longer than the others'; left out, it is so; "none" for no bound

A site reads it to know what it will be asked for, and approves that (see `manifest`).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from farfield.errors import UserError

#: Keys that a file cannot go without, and what they say.
NEEDED = {
    "name": "what the federation is called",
    "server": "where sites connect, such as 127.0.0.1:9443",
    "algorithm": "the method to train with",
    "sites": "how many training sites are waited for",
}


#: How the server bounds the length of updates where the file does not say.
BOUND = "median"


class FederationFileError(UserError):
    """A federation file that cannot be used, in one sentence that names the file and the key."""


def _name(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value):
        raise ValueError(f"{value!r} is no name; give 1 to 64 letters, digits, '-' and '_'")
    return value


def _address(value: Any) -> Any:
    if isinstance(value, str):
        split_address(value)
    return value


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of 'host:port', an IPv6 address without brackets. Raises ValueError for anything else."""
    host, colon, port = address.rpartition(":")
    shown = f"{address!r} is not a valid address"
    if not colon or not host:
        raise ValueError(f"{shown}; give host:port, such as 127.0.0.1:9443")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"{shown}: {port!r} is not a valid port; give 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(IPv6Address(host[1:-1])), int(port)
        except ValueError:
            raise ValueError(f"{shown}: {host[1:-1]!r} is no IPv6 address") from None
    if ":" in host:
        raise ValueError(f"{shown}; put an IPv6 address in brackets, such as [::1]:9443")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
        raise ValueError(f"{shown}: {host!r} is no host; give a name or an IP address")
    return host, int(port)


def _flat(value: Any, before: str = "") -> Any:
    """Flatten nested tables: TOML reads `model.hidden = [32]` as one, and here it is a setting with a dotted name."""
    if not isinstance(value, dict):
        return value
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{before}{key}.") if isinstance(inner, dict) else {f"{before}{key}": inner}
    return flat


def _with_bound(settings: Any) -> Any:
    """Bound updates by default: in a deployment one site must not decide the mean alone.

    Server and sites read the same file, so both have the same settings, and a site approves this one with the others.
    """
    settings = _flat(settings)
    if not isinstance(settings, dict):
        return settings
    # A secure sum shows the server no single update that it could cut.
    given = settings.get("bound", None if settings.get("secure_sums") else BOUND)
    return {**settings, "bound": None if isinstance(given, str) and given.lower() == "none" else given}


class FederationFile(BaseModel):
    """The content of a federation file, and where it lies."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False)

    path: Annotated[Path, Field(strict=False)]
    name: Annotated[str, BeforeValidator(_name)]
    server: Annotated[str, BeforeValidator(_address)]
    algorithm: str
    #: Left out, the default of the task that the sites' data makes.
    rounds: int | None = Field(None, ge=1)
    sites: int = Field(ge=1)
    evaluating: int = Field(0, ge=0)
    seed: int = Field(0, ge=0)
    quorum: float = Field(0.5, gt=0, le=1)
    deadline: float = Field(600.0, gt=0)
    evaluate_every: int | None = Field(None, ge=1)
    cohort: int | None = Field(None, ge=1)
    #: Whether training sites tell moments of their features, from which the shift between them is described.
    diagnose: bool = False
    #: Settings by their full names: `lr`, `fedprox.mu`, `model.hidden`.
    settings: Annotated[dict[str, Any], BeforeValidator(_with_bound)] = Field(
        default_factory=dict, alias="set", validate_default=True
    )

    @property
    def host(self) -> str:
        """Where the server is, an IPv6 address without brackets."""
        return split_address(self.server)[0]

    @property
    def port(self) -> int:
        return split_address(self.server)[1]

    def refusal(self, key: str, why: str) -> FederationFileError:
        """An error about one of the keys."""
        return FederationFileError(f"'{self.path}', key '{key}': {why}")


def read_federation(path: Path | str) -> FederationFile:
    """Read a federation file, and check it as far as that is possible without data."""
    path = Path(path)
    if path.is_dir():
        path = path / "federation.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FederationFileError(
            f"there is no federation file '{path}'; the server's operator writes it, and its sites get it from there"
        ) from None
    except OSError as error:
        raise FederationFileError(f"the federation file '{path}' cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, OverflowError) as error:  # TOML that is wrong, not UTF-8, or nested too deeply
        raise FederationFileError(f"the federation file '{path}' is not TOML: {error}") from None
    for key in ("path", "settings"):
        if key in content:
            raise _unknown(path, key)
    try:
        federation = FederationFile.model_validate({**content, "path": path})
    except ValidationError as error:
        raise _misread(path, error) from None
    _check_method(federation)
    if federation.cohort is not None and federation.cohort > federation.sites:
        raise federation.refusal(
            "cohort", f"{federation.cohort} sites cannot be drawn from {federation.sites}; give at most that many"
        )
    return federation


def _unknown(path: Path, key: str) -> FederationFileError:
    keys = [field.alias or name for name, field in FederationFile.model_fields.items() if name != "path"]
    near = ["set"] if key == "settings" else difflib.get_close_matches(key, keys, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(keys)}"
    return FederationFileError(f"'{path}' has an unknown key '{key}'; {hint}")


def _misread(path: Path, error: ValidationError) -> FederationFileError:
    # A missing key is often another one, misspelled: that says more.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return _unknown(path, key)
    if first["type"] == "missing":
        return FederationFileError(f"'{path}' has no key '{key}', {NEEDED[key]}")
    problem = first["msg"].removeprefix("Value error, ")
    shown = f", not {first['input']!r}" if not first["msg"].startswith("Value error") else ""
    return FederationFileError(f"'{path}', key '{key}': {problem[0].lower()}{problem[1:]}{shown}")


def _check_method(federation: FederationFile) -> None:
    """Refuse a method that does not exist or does not work across sites, and settings that have no meaning."""
    from farfield.algorithms import AlgorithmError, build, parts
    from farfield.runs.settings import PlanError, sort_settings

    name = federation.algorithm
    try:
        client, _ = parts(name)
    except AlgorithmError as error:
        raise federation.refusal("algorithm", _or_newer(str(error))) from None
    if client.family == "reference":
        raise federation.refusal(
            "algorithm", f"'{client.name}' is a reference for one machine, not a method for sites; choose another"
        )
    settings = dict(federation.settings)
    try:
        _check_augment(settings.pop("augment", None))
        found = sort_settings(settings, [name])
        method = build(name, found.given[name], federation.rounds)
        method.check_cohort(federation.cohort or federation.sites)
        if federation.diagnose and method.params.privacy != "none":
            raise PlanError("a diagnosis sends moments of the rows without noise; with privacy, set diagnose = false")
        _check_model(found.model)
    except (AlgorithmError, PlanError) as error:
        raise federation.refusal("set", str(error)) from None


def _or_newer(problem: str) -> str:
    """A method may be unknown because it is newer than this machine's version."""
    if not problem.startswith("unknown") or "did you mean" in problem:
        return problem
    from farfield import __version__

    return f"{problem}; a newer version than this one, {__version__}, may know it"


def _check_augment(augment: Any) -> None:
    from farfield.runs.settings import PlanError
    from farfield.tasks.augment import AUGMENTATIONS, NONE

    if augment is not None and augment not in (NONE, *AUGMENTATIONS):
        raise PlanError(f"augment = {augment!r}: choose one of {', '.join((NONE, *AUGMENTATIONS))}")


def _check_model(settings: dict[str, Any]) -> None:
    """Refuse values that no model can have. Whether they fit the sites' data is checked when the data is known."""
    from farfield.models import ModelSpec, TimmError, resolved_name
    from farfield.runs.settings import PlanError

    known = [field for field in ModelSpec.model_fields if field not in ("input_shape", "outputs")]
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean 'model.{near[0]}'?" if near else f"it has {', '.join(known)}"
            raise PlanError(f"a model has no setting '{key}'; {hint}")
    try:
        ModelSpec.model_validate({"input_shape": (1,), "outputs": 1, **settings})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("model", *first["loc"])))
        raise PlanError(f"{place} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    try:
        resolved_name(str(settings.get("featurizer", "")))
    except TimmError as error:
        raise PlanError(f"model.featurizer: {error}") from None
