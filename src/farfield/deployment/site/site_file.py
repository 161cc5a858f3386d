"""A site's own file, `site.toml`: which data it brings into a federation. The server never names a path.

name = "cleveland"          # the site's name in the federation: its domain
data = "cleveland.csv"      # relative to this file: a table, a folder of class/*.png, or an .npz with x and y
label = "disease"           # tables: the column to predict
drop = ["id"]               # tables: columns to leave out
categorical = ["ward"]      # tables: columns of numbers or texts that are codes of categories
group = "patient"           # tables: rows of one value train together or validate together; no feature
validation = 0.1            # share of the rows kept for validation
peers = "peers"             # a folder with the other sites' .pub files: secure sums with these sites alone
role = "train"              # or "evaluate": never trains, is only measured
# in place of data: a domain of a registered task, from this machine's data folder
# task = "rotated-digits"
# domain = "30"
[limits]                    # see `limits`: runs, rows, update_rows, validation_rows, model_change, parameters
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from farfield.deployment.site.limits import Limits
from farfield.errors import UserError
from farfield.reproducibility.devices import DeviceError, device_named
from farfield.tasks.clients.validation import OFFICIAL

TABLE_KEYS = ("label", "drop", "categorical", "group", "drop_missing_labels")


class SiteFileError(UserError):
    """A site file that cannot be used, in one sentence that names the file and the key."""


def _share(value: Any) -> Any:
    if value == OFFICIAL or (isinstance(value, int | float) and 0 < value < 1):
        return value
    raise ValueError(f"{value!r} is no share of the rows; give a number between 0 and 1 such as 0.1, or '{OFFICIAL}'")


def _name(value: Any) -> Any:
    if isinstance(value, str) and (not value.isprintable() or value != value.strip() or not 0 < len(value) <= 100):
        raise ValueError(f"{value!r} is no name; give 1 to 100 letters, without spaces around them")
    return value


Columns = Annotated[tuple[str, ...], Field(strict=False)]


class SiteFile(BaseModel):
    """The content of a site file, and where it lies."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: Path
    #: Left out, it is the domain of the registered task.
    name: Annotated[str, BeforeValidator(_name)]
    data: str | None = None
    label: str | None = None
    drop: Columns = ()
    categorical: Columns = ()
    #: Rows of one value in this column are all in the training rows or all in the validation rows.
    group: str | None = None
    #: Rows without a label are left out instead of refused.
    drop_missing_labels: bool = False
    #: Pixels along each side of an image; the same at every site.
    image_size: int | None = Field(None, ge=8, le=1024)
    task: str | None = None
    domain: str | None = None
    validation: Annotated[float | Literal["official"], BeforeValidator(_share)] = 0.1
    role: Literal["train", "evaluate"] = "train"
    #: A folder with the public keys of the sites with which this one takes part in secure sums; see `peer_keys`.
    peers: str | None = None
    #: What computes at this site: "cpu", "cuda", "cuda:N", or "auto" for a GPU where there is one.
    device: str = "cpu"
    #: What the operator limits whatever a server asks.
    limits: Limits = Limits()

    @property
    def data_path(self) -> Path:
        return self.path.parent / (self.data or "")

    def refusal(self, key: str, why: str) -> SiteFileError:
        """An error about one of the keys."""
        return SiteFileError(f"'{self.path}', key '{key}': {why}")


def read_site(path: Path | str) -> SiteFile:
    """Read a site file. `open_site` reads the data that it names."""
    path = Path(path)
    if path.is_dir():
        path = path / "site.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SiteFileError(
            f"there is no site file '{path}'; write one that names the site, its data and its label"
        ) from None
    except OSError as error:
        raise SiteFileError(f"the site file '{path}' cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, OverflowError) as error:  # TOML that is wrong, not UTF-8, or nested too deeply
        raise SiteFileError(f"the site file '{path}' is not TOML: {error}") from None
    if "domain" in content:
        content.setdefault("name", content["domain"])
    if "path" in content:
        raise SiteFileError(f"'{path}' has an unknown key 'path'; did you mean 'data'?")
    try:
        site = SiteFile.model_validate({**content, "path": path})
    except ValidationError as error:
        raise _misread(path, error) from None
    _check_together(site)
    return site


def _misread(path: Path, error: ValidationError) -> SiteFileError:
    first = error.errors()[0]
    key = str(first["loc"][0])
    if key == "limits":
        return SiteFileError(f"'{path}', {_about_limits(first)}")
    if first["type"] == "extra_forbidden":
        keys = [known for known in SiteFile.model_fields if known != "path"]
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(keys)}"
        return SiteFileError(f"'{path}' has an unknown key '{key}'; {hint}")
    if first["type"] == "missing":
        return SiteFileError(f"'{path}' has no key '{key}', the site's name in the federation")
    if key == "role":
        return SiteFileError(f"'{path}', key 'role': there is no role {first['input']!r}; it is 'train' or 'evaluate'")
    problem = first["msg"].removeprefix("Value error, ")
    return SiteFileError(f"'{path}', key '{key}': {problem[0].lower()}{problem[1:]}")


def _about_limits(first: Any) -> str:
    known = list(Limits.model_fields)
    if len(first["loc"]) < 2:
        return f"key 'limits': this is a table, [limits], with {', '.join(known)}"
    name = str(first["loc"][1])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
        return f"key 'limits': there is no limit '{name}'; {hint}"
    return f"key 'limits.{name}': {first['msg'][0].lower()}{first['msg'][1:]}"


def _check_together(site: SiteFile) -> None:
    """Refuse keys that exclude one another, and a key without the one that it needs."""
    if site.data is not None and site.task is not None:
        raise site.refusal("task", "the site has 'data' of its own as well; name one of the two")
    if site.data is None and site.task is None:
        raise site.refusal("data", "missing; name a file or folder, or a registered 'task' and its 'domain'")
    if site.task is not None and site.domain is None:
        raise site.refusal("domain", f"missing; name the domain of the task '{site.task}' that is this site's")
    if site.task is None and site.domain is not None:
        raise site.refusal("domain", "a site's own data is one domain, which 'name' names; leave this key out")
    if site.task is not None:
        for key in (*TABLE_KEYS, "image_size"):
            if key in site.model_fields_set:
                raise site.refusal(key, f"this is for data of the site's own, not for the task '{site.task}'")
    elif site.validation == OFFICIAL:
        raise site.refusal("validation", "only registered tasks have an official split; give a share such as 0.1")
    if site.label is not None and site.label in (*site.drop, *site.categorical):
        raise site.refusal("label", f"'{site.label}' cannot be dropped or be a category as well")
    try:
        device = device_named(site.device)
    except DeviceError as error:
        raise site.refusal("device", str(error).replace("--device cpu", 'device = "cpu"')) from None
    if device.type == "mps":
        raise site.refusal("device", 'a site answers in forked processes, and these cannot use MPS; use "cpu"')
    if site.group is not None and site.group in (site.label, *site.categorical):
        raise site.refusal("group", f"'{site.group}' cannot be the group and something else as well")
