"""Pretrained weights of a model of timm, downloaded through timm into the data folder. Only because someone asked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from safetensors.torch import save_file

from farfield.errors import UserError
from farfield.models.timm_library import configuration, download, file_stem
from farfield.tasks.data_folder.checksums import sums, write_record
from farfield.tasks.data_folder.downloading import NoSpace, is_full
from farfield.tasks.data_folder.fetching import CannotFetch
from farfield.tasks.data_folder.hub import HubFailed
from farfield.tasks.data_folder.importing import AlreadyHere
from farfield.tasks.data_folder.store import VARIABLE, data_folder

FOLDER = "weights"


def place_of_weights(featurizer: str) -> Path:
    """Where the weights of a model of timm lie in the data folder, which is where `model.weights=auto` looks."""
    return data_folder() / FOLDER / f"{file_stem(featurizer)}.safetensors"


def check_weights_free(featurizer: str, replace: bool) -> None:
    """Refuse weights that nobody publishes, and weights that are here, unless they are to be replaced."""
    known, place = configuration(featurizer), place_of_weights(featurizer)
    if not known.source:
        raise CannotFetch(f"timm publishes no weights of '{known.name}'; train it with model.weights=none")
    if place.exists() and not replace:
        raise AlreadyHere(
            f"the weights of timm:{known.name} are here already, in '{place}'; add --replace to download them again"
        )


def fetch_weights(featurizer: str, *, replace: bool = False) -> Path:
    """Download the weights, load them into the model to see that they fit, and keep them as one safetensors file.

    What is unfinished lies in `.fetch` of the data folder; the next call goes on with it.
    """
    check_weights_free(featurizer, replace)
    known, place = configuration(featurizer), place_of_weights(featurizer)
    stage = data_folder() / ".fetch" / file_stem(featurizer)
    stage.mkdir(parents=True, exist_ok=True)
    ready = stage / "ready" / place.name
    try:
        state = download(featurizer, stage)
        ready.parent.mkdir(exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in state.items()}, ready)
        found = sums(ready)
        os.replace(ready, place)
    except UserError:
        raise
    except Exception as error:  # what a broken connection raises differs from one version of the client to the next
        if isinstance(error, OSError) and is_full(error):
            shutil.rmtree(stage, ignore_errors=True)
            raise NoSpace(
                f"the disk of '{data_folder()}' was full before the weights of timm:{known.name} were ready; make "
                f"room, or set {VARIABLE} to a larger disk"
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise HubFailed(
            f"the weights of timm:{known.name} could not be had from {known.source} ({reason}); what came is kept, "
            "give the same command again to go on"
        ) from error
    shutil.rmtree(stage)
    write_record(place, found, [f"timm:{known.name}, downloaded from {known.source}"])
    if not any(stage.parent.iterdir()):
        stage.parent.rmdir()
    return place
