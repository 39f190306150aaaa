"""HTML pages from templates; all extend `page.html.j2`, which is here."""

from __future__ import annotations

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def render(template: str, package: str = "hge.drawing", **values: Any) -> str:
    """Render a template of a package."""
    loaders = [PackageLoader(name) for name in dict.fromkeys((package, "hge.drawing"))]
    pages = Environment(loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = pages.get_template(template).render(**values)
    return page.encode("utf-8", "replace").decode()  # names of files need not be UTF-8
