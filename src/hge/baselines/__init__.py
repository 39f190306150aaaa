"""Methods of comparison, one per file, and each as a scikit-learn classifier, such as `hge.baselines.DERPlusPlus`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

ESTIMATORS = {
    "AGEM": "agem",
    "BGD": "bgd",
    "CNDPM": "cn-dpm",
    "DER": "der",
    "DERPlusPlus": "der++",
    "DGR": "dgr",
    "ER": "er",
    "ERACE": "er-ace",
    "EWC": "ewc",
    "ExpandableRepresentation": "expandable",
    "ExpertGate": "expert-gate",
    "GDumb": "gdumb",
    "HCLFR": "hcl-fr",
    "HCLGR": "hcl-gr",
    "HNEntropy": "hn-entropy",
    "HVCL": "hvcl",
    "Joint": "joint",
    "LwF": "lwf",
    "NCM": "ncm",
    "Naive": "naive",
    "RanDumb": "randumb",
    "RanPAC": "ranpac",
    "SI": "si",
    "SLDA": "slda",
    "SNCL": "sncl",
    "TAME": "tame",
}
"""Name of a classifier -> method. `separate` and `hn` have none: they must be given the task of every row."""


def __getattr__(name: str) -> Any:
    """Build a classifier when it is first used: the adapter is of a higher layer, and imports torch."""
    if name not in ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = import_module("hge.experiments.baseline_classifier").classifier(name, ESTIMATORS[name])
    globals()[name] = made  # the same class every time, as pickle requires
    return made


def __dir__() -> list[str]:
    return sorted({*globals(), *ESTIMATORS})
