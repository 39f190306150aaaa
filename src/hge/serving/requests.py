"""The requests of the service: what is accepted, and which errors name what."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from hge.serving.waiting_room import FloatRows

MOST_ROWS = 4096
"""Rows in one request."""

Rows = Annotated[
    list[Any],
    Field(
        min_length=1,
        max_length=MOST_ROWS,
        description="rows of numbers; those of images are nested",
        examples=[[[0.1, 0.7]]],
    ),
]
Labels = Annotated[
    list[StrictBool | StrictInt | StrictFloat | StrictStr],
    Field(min_length=1, max_length=MOST_ROWS, description="one label per row: numbers or texts", examples=[["cat"]]),
]
Id = Annotated[str, Field(min_length=1, max_length=200, description="a name of your own for these rows")]


class Strict(BaseModel):
    """A request without unknown fields: a misspelt one is an error."""

    model_config = ConfigDict(extra="forbid")


class PredictRequest(Strict):
    """Rows to predict; with an id they wait for their labels."""

    rows: Rows
    id: Id | None = None


class LearnRequest(Strict):
    """Rows to learn, with their labels."""

    rows: Rows
    labels: Labels


class LabelRequest(Strict):
    """Labels of rows that were predicted earlier."""

    id: Id
    labels: Labels


class FieldError(ValueError):
    """A value that is refused; answered with 422 and the field's name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def read_rows(rows: list[Any], shape: tuple[int, ...] | None) -> FloatRows:
    """Return rows as float32; raise a FieldError if they are not numbers of one shape, or not of the model's."""
    try:
        given = np.asarray(rows)
        if given.dtype.kind == "U" or (given.dtype == object and any(isinstance(value, str) for value in given.flat)):
            raise TypeError  # numpy would read "1.5" as a number
        found = given.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        raise FieldError(
            "rows", "got rows that are not numbers, or of different lengths; expected rows of numbers"
        ) from None
    if found.ndim < 2 or not found.size:
        raise FieldError("rows", f"got an array of shape {found.shape}, expected a list of rows of numbers")
    if shape is not None and found.shape[1:] != shape:
        raise FieldError("rows", f"got rows of shape {found.shape[1:]}, expected {shape}")
    with np.errstate(over="ignore"):
        small = found.astype(np.float32)
    if not np.isfinite(small).all():
        raise FieldError("rows", "got NaN, infinity or a number beyond 1e38, expected finite numbers")
    return small
