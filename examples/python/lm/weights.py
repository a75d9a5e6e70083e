"""Weights on disk, in a form that LibTorch reads too: a pickled dict of tensors and a dict of integers."""

import dataclasses
import pickle
from pathlib import Path

import torch
from torch.jit._pickle import restore_type_tag

from .encodings import ENCODINGS
from .model import LanguageModel, ModelOptions


class WeightsError(Exception):
    """Weights that cannot be used; the message is one line for the user."""


def save_weights(model: LanguageModel, path: Path) -> None:
    """Writes the weights and the model's options; an older file is replaced in one step."""
    options = {name: value for name, value in dataclasses.asdict(model.options).items() if name != "encoding"}
    content = {
        "weights": dict(model.state_dict()),
        "options": options,
        "encoding": model.options.encoding,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    torch.save(content, unfinished)
    unfinished.replace(path)


def load_weights(path: Path) -> LanguageModel:
    """Reads a model, written by this program or by its C++ twin.

    Raises:
        WeightsError: the file is missing or is no such file.
    """
    try:
        # LibTorch marks dicts with their types, through this function; it returns its first argument.
        with torch.serialization.safe_globals([restore_type_tag]):
            content = torch.load(path, weights_only=True)
    except OSError as error:
        raise WeightsError(f"cannot read weights {path}: {error.strerror or error}") from error
    except (RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise WeightsError(f"{path} holds no weights of this program") from error
    try:
        encoding = content["encoding"]
        if encoding not in ENCODINGS:
            raise WeightsError(f"{path} was trained with the encoding {encoding!r}, which is not known here")
        model = LanguageModel(ModelOptions(encoding=encoding, **content["options"]))
        model.load_state_dict(content["weights"])
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise WeightsError(f"{path} holds no weights of this program") from error
    return model
