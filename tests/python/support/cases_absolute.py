"""The absolute encodings under test."""

import torch

import reference
from encoding_case import LENGTH, Case


def _embeddings(dim):
    return lambda dtype: (torch.randn(2, LENGTH, dim, dtype=torch.float64).to(dtype),)


def _where(positions=None, **offset):
    """A call at these positions, or from this offset on, on the device of the embeddings."""

    def call(module, x):
        return module(x, None if positions is None else positions.to(x.device), **offset)

    return call


def _sinusoidal(name, dim, positions=None, **options) -> Case:
    plain = torch.arange(LENGTH) if positions is None else positions
    return Case(
        name=name,
        python="Sinusoidal",
        arguments=(dim,),
        options=options,
        inputs=_embeddings(dim),
        reference=lambda parameters, x: (x + reference.sinusoidal(plain, dim, **options),),
        call=_where(positions),
    )


def _learned_absolute(name, max_positions, dim, positions=None, offset=0) -> Case:
    rows = torch.arange(LENGTH) + offset if positions is None else positions
    return Case(
        name=name,
        python="LearnedAbsolute",
        arguments=(max_positions, dim),
        options={},
        inputs=_embeddings(dim),
        reference=lambda parameters, x: (x + parameters["weight"][rows],),
        parameters=("weight",),
        call=_where(positions, offset=offset),
    )


def _cape(name, dim, positions=None, training=False, **options) -> Case:
    plain = torch.arange(LENGTH) if positions is None else positions
    if options.get("centre"):
        plain = plain.double() - plain.double().mean(-1, keepdim=True)
    return Case(
        name=name,
        python="CAPE",
        arguments=(dim,),
        options=options,
        inputs=_embeddings(dim),
        reference=lambda parameters, x: (x + reference.sinusoidal(plain, dim, base=options.get("base", 10000.0)),),
        call=_where(positions),
        training=training,
    )


# The second row restarts and repeats.
BY_ROW = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [9, 0, 0, 1, 2, 7, 3]])
# Rows, columns and times of the tokens of every batch row.
GRID = torch.tensor([[0, 0, 0, 1, 1, 1, 2], [0, 1, 2, 0, 1, 2, 0], [5, 5, 5, 5, 9, 9, 9]])

SINUSOIDAL_CASES = [
    _sinusoidal("sinusoidal", 8),
    _sinusoidal("sinusoidal_odd", 5),
    _sinusoidal("sinusoidal_width_1", 1, BY_ROW),
    _sinusoidal("sinusoidal_base_between_tokens", 6, BY_ROW + 0.25, base=500.0),
    _sinusoidal("sinusoidal_concatenated", 8, layout="concatenated"),
    _sinusoidal("sinusoidal_concatenated_odd", 7, BY_ROW, layout="concatenated"),
    _sinusoidal("sinusoidal_tensor2tensor", 8, BY_ROW, layout="tensor2tensor"),
    _sinusoidal("sinusoidal_tensor2tensor_odd", 7, layout="tensor2tensor", base=500.0),
    _sinusoidal("sinusoidal_cosines_first", 8, BY_ROW + 0.5, layout="cosines_first"),
    _sinusoidal("sinusoidal_cosines_first_odd", 7, layout="cosines_first", base=500.0),
    _sinusoidal("sinusoidal_axes", 12, torch.stack([BY_ROW, BY_ROW.flip(1)]), num_axes=2),
    _sinusoidal("sinusoidal_axes_shared", 12, GRID, num_axes=3, layout="concatenated", base=100.0),
    _sinusoidal("sinusoidal_axes_cosines_first", 8, GRID[:2] / 2, num_axes=2, layout="cosines_first"),
]

LEARNED_ABSOLUTE_CASES = [
    _learned_absolute("learned_absolute", 16, 6),
    _learned_absolute("learned_absolute_offset", LENGTH + 2, 5, offset=2),
    _learned_absolute("learned_absolute_by_row", 10, 4, BY_ROW),
]

CAPE_CASES = [
    _cape("cape_eval", 8),
    _cape("cape_eval_odd", 5, BY_ROW + 0.5, base=500.0, max_global_shift=20.0),
    _cape("cape_eval_centre", 6, BY_ROW, centre=True),
    _cape("cape_training_unmoved", 6, training=True, max_global_shift=0.0, max_local_shift=0.0, max_global_scaling=1.0),
]

CASES = SINUSOIDAL_CASES + LEARNED_ABSOLUTE_CASES + CAPE_CASES
