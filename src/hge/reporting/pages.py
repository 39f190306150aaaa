"""Pages of this package's templates."""

from __future__ import annotations

from functools import partial

from hge.drawing import pages

render = partial(pages.render, package=__package__)
