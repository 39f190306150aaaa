"""Build the notebooks from the scripts that are divided into cells by `# %%`.

python examples/notebooks.py    writes tabular_stream.ipynb, monitoring_switches.ipynb, own_network.ipynb
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NOTEBOOKS = ("tabular_stream", "monitoring_switches", "own_network")
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def notebook(script: str) -> str:
    """Return a script as a notebook without outputs.

    >>> cells = json.loads(notebook("# %% [markdown]\\n# A title\\n\\n# %%\\nprint(1)\\n"))["cells"]
    >>> [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    [('markdown', 'A title'), ('code', 'print(1)')]
    """
    _, *parts = CELL.split(script)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    cells = [_cell(number, bool(mark), text.strip()) for number, (mark, text) in enumerate(pairs)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, is_text: bool, text: str) -> dict[str, Any]:
    if is_text:
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    common = {"id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    if is_text:
        return {"cell_type": "markdown", **common}
    return {"cell_type": "code", **common, "execution_count": None, "outputs": []}


if __name__ == "__main__":
    for name in NOTEBOOKS:
        script = (HERE / f"{name}.py").read_text(encoding="utf-8")
        (HERE / f"{name}.ipynb").write_text(notebook(script), encoding="utf-8")
