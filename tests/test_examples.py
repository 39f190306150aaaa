"""The examples run and print what they are about; the notebooks are those of the scripts."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import pytest

HERE = Path(__file__).parent.parent / "examples"
build = runpy.run_path(str(HERE / "notebooks.py"))
PRINTED = {
    "tabular_stream": "GatedExperts(): 3,840 rows, 3 experts",
    "images_from_folder": "of the new images predicted rightly",
    "sensor_drift_served": "2,720 rows learned by 2 experts, 2 changes between them",
    "monitoring_switches": "the data are new; an expert is being trained for them",
    "own_network": "of unseen images predicted rightly",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str, capfd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(matplotlib.pyplot, "show", lambda: None)
    if name == "sensor_drift_served":
        pytest.importorskip("uvicorn", reason="hge[serve] is not installed")
    runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")
    assert PRINTED[name] in capfd.readouterr().out
    matplotlib.pyplot.close("all")


def test_all_examples_are_run() -> None:
    assert {path.stem for path in HERE.glob("*.py")} == {*PRINTED, "notebooks"}


@pytest.mark.parametrize("name", build["NOTEBOOKS"])
def test_a_notebook_is_that_of_its_script(name: str) -> None:
    expected = build["notebook"]((HERE / f"{name}.py").read_text(encoding="utf-8"))
    assert (HERE / f"{name}.ipynb").read_text(encoding="utf-8") == expected, "run `python examples/notebooks.py`"
    kinds = [cell["cell_type"] for cell in json.loads(expected)["cells"]]
    assert (kinds[0], kinds.count("code") >= 3) == ("markdown", True)


@pytest.mark.slow
@pytest.mark.parametrize("name", build["NOTEBOOKS"])
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
