"""The paper's Tables 1 to 5, as printed: mean ± standard deviation over its five runs, where it gives one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

ROUTE_SINGLE_SAMPLES = frozenset({"TAME", "CN-DPM"})
"""Rows of Table 4 whose methods route single samples at test time; GE and HGE route batches of 128."""
NOTES = {
    "DER": "The DER row mixes two methods: Dark Experience Replay (pmnist, cif10, imgnet-20) and Dynamically "
    "Expandable Representation (cif100-10, cif100-20).",
    "TAME": "TAME and CN-DPM route single samples at test time; GE and HGE route batches of 128. TAME's public code "
    "numbers labels within each task; ours are global.",
}
TITLES = {
    1: "Task switch detection errors per task",
    2: "Organisation: batches sent to the right expert (%), experts queried",
    3: "All trees of the search for Upper: correlation and spread of accuracy (%) and of experts queried",
    4: "Accuracy on continual learning benchmarks (%)",
    5: "Accuracy on hybrid scenarios (%)",
}
MERGED_ROWS = {
    "cifar-all": ("cif10", "cif100-10", "cif100-20"),
    "imagenet-all": ("imgnet-10", "imgnet-20"),
}
"""Rows of Table 1 that cover several scenarios."""


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    scenario: str
    """Name as listed by `hge scenarios`."""
    method: str
    """Name used in the paper."""
    figure: str
    mean: float | None
    """None if the run did not finish (DNF)."""
    std: float | None
    """None if not given."""

    def __str__(self) -> str:
        if self.mean is None:
            return "DNF"
        return f"{self.mean:g}" if self.std is None else f"{self.mean:g} ± {self.std:g}"


@cache
def paper_table(number: int) -> tuple[Cell, ...]:
    """Return a table's cells; those without a number (N/A) are left out.

    >>> [str(cell) for cell in paper_table(4) if (cell.scenario, cell.method) == ("smnist", "HGE")]
    ['99.48 ± 0.04', '100 ± 0', '4.37 ± 0.49']
    """
    if number not in TITLES:
        raise ValueError(f"table: got {number}, expected 1 to {len(TITLES)}")
    return tuple(cell for text in _TABLES[number] for cell in _read(text))


def _read(text: str) -> list[Cell]:
    header, *rows = [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]
    cells = []
    for row in rows:
        for column, value in zip(header[1:], row[1:], strict=True):
            scenario, label = (row[0], column) if header[0] == "scenario" else (column, row[0])
            method, figure = label.split(": ")
            short, dot, statistic = figure.partition(".")
            figure = _FIGURES.get(short, short) + dot + statistic
            if value != "N/A":
                cells += [
                    Cell(name, method, figure, *_number(value)) for name in MERGED_ROWS.get(scenario, (scenario,))
                ]
    return cells


def _number(text: str) -> tuple[float | None, float | None]:
    if text == "DNF":
        return None, None
    mean, _, std = text.partition("±")
    return float(mean), float(std) if std else None


_FIGURES = {"acc": "accuracy", "gate": "gate_accuracy", "exp": "experts_queried"}

_TABLES = {
    1: (
        """
scenario     | GE: false | GE: missed | GE w/o review: false | GE w/o review: missed | TAME: false | TAME: missed
pmnist       | 0         | 0          | 0                    | 0                     | 0           | 0
smnist       | 0         | 0          | 0                    | 0                     | 0.04        | 0.04
cifar-all    | 0         | 0          | DNF                  | DNF                   | DNF         | DNF
imagenet-all | 0         | 0          | DNF                  | DNF                   | DNF         | DNF
mnist-kmnist | 0         | 0.04       | 0                    | 0                     | 0           | 0
mnist-cif10  | 0         | 0          | DNF                  | DNF                   | DNF         | DNF
cif10-inv    | 0         | 0          | DNF                  | DNF                   | DNF         | DNF
cif-imgnet   | 0         | 0          | DNF                  | DNF                   | DNF         | DNF
""",
    ),
    2: (
        """
scenario     | GE: gate   | GE: exp | HGE: gate  | HGE: exp   | Upper: gate | Upper: exp
pmnist       | 100.0±0.0  | 20      | 99.76±0.11 | 11.25±1.02 | 99.7±0.19   | 8.05±0.13
smnist       | 100.0±0.0  | 5       | 98.26±1.4  | 3.83±0.21  | 99.75±0.56  | 3.56±0.09
cif10        | 95.25±5.11 | 5       | 95.0±5.66  | 4.17±0.55  | 95.0±5.66   | 3.85±0.38
cif100-10    | 77.25±2.05 | 10      | 76.75±1.9  | 9.49±0.85  | 75.0±4.59   | 8.02±0.33
cif100-20    | 83.25±8.08 | 20      | 82.75±7.52 | 17.55±1.43 | 84.0±8.59   | 12.84±0.74
imgnet-10    | 61.0±13.3  | 10      | 61.0±13.3  | 9.7±0.42   | 59.0±12.57  | 8.47±0.5
imgnet-20    | 73.5±5.76  | 20      | 73.5±5.76  | 19.02±0.93 | 73.5±2.85   | 15.03±0.6
mnist-kmnist | 95.25±5.94 | 10      | 95.25±5.94 | 6.42±0.57  | 95.01±5.72  | 5.13±0.09
mnist-cif10  | 98.88±0.52 | 10      | 98.75±0.77 | 5.29±0.1   | 98.4±1.01   | 4.92±0.16
cif10-inv    | 98.25±0.93 | 10      | 97.88±0.71 | 6.62±0.99  | 98.0±0.93   | 5.31±0.19
cif-imgnet   | 68.88±1.49 | 20      | 68.88±1.49 | 19.06±0.81 | 68.38±1.44  | 15.6±0.65
""",
    ),
    3: (
        """
scenario     | Upper: acc.pcc | Upper: acc.mean | Upper: acc.std | Upper: acc.median | Upper: acc.iqr | Upper: acc.mad
pmnist       | 0.13±0.06      | 99.57±0.04      | 0.45±0.08      | 99.71±0.03        | 0.39±0.07      | 0.19±0.0
smnist       | 0.3±0.19       | 99.55±0.48      | 0.7±0.6        | 100.0±0.0         | 0.72±1.06      | 0.0±0.0
cif10        | 0.02±0.03      | 95.08±5.46      | 0.28±0.41      | 95.12±5.38        | 0.25±0.56      | 0.12±0.28
cif100-10    | 0.55±0.19      | 77.03±1.98      | 0.53±0.13      | 77.25±2.05        | 0.25±0.56      | 0.0±0.0
cif100-20    | 0.13±0.18      | 83.07±7.93      | 0.86±0.09      | 83.25±8.08        | 0.25±0.56      | 0.0±0.0
imgnet-10    | 0.11±0.29      | 60.97±13.28     | 0.39±0.2       | 61.0±13.3         | 0.0±0.0        | 0.0±0.0
imgnet-20    | 0.18±0.22      | 73.42±5.6       | 1.06±0.24      | 73.5±5.76         | 0.0±0.0        | 0.0±0.0
mnist-kmnist | 0.09±0.12      | 95.13±5.91      | 0.36±0.1       | 95.25±5.94        | 0.12±0.28      | 0.0±0.0
mnist-cif10  | 0.01±0.08      | 98.78±0.57      | 0.21±0.26      | 98.88±0.52        | 0.12±0.28      | 0.0±0.0
cif10-inv    | 0.14±0.12      | 98.03±0.84      | 0.52±0.17      | 98.25±0.93        | 0.12±0.28      | 0.12±0.28
cif-imgnet   | 0.31±0.12      | 68.77±1.47      | 0.44±0.14      | 68.88±1.49        | 0.0±0.0        | 0.0±0.0
""",
        """
scenario     | Upper: exp.scc | Upper: exp.mean | Upper: exp.std | Upper: exp.median | Upper: exp.iqr | Upper: exp.mad
pmnist       | 0.17±0.08      | 11.32±0.32      | 1.45±0.14      | 11.16±0.34        | 1.97±0.22      | 0.97±0.1
smnist       | 0.36±0.21      | 4.08±0.09       | 0.32±0.03      | 4.07±0.15         | 0.41±0.02      | 0.26±0.07
cif10        | 0.03±0.07      | 4.29±0.36       | 0.31±0.05      | 4.25±0.33         | 0.55±0.17      | 0.22±0.12
cif100-10    | 0.54±0.21      | 9.72±0.14       | 0.39±0.09      | 9.87±0.29         | 0.45±0.3       | 0.1±0.23
cif100-20    | 0.12±0.2       | 17.56±0.89      | 1.37±0.11      | 17.65±0.97        | 1.78±0.18      | 0.88±0.12
imgnet-10    | 0.05±0.31      | 9.86±0.1        | 0.26±0.12      | 10.0±0.0          | 0.13±0.29      | 0.0±0.0
imgnet-20    | 0.15±0.21      | 19.07±0.33      | 0.91±0.18      | 19.19±0.31        | 1.25±0.35      | 0.64±0.12
mnist-kmnist | 0.1±0.12       | 6.51±0.18       | 0.64±0.09      | 6.46±0.2          | 0.87±0.19      | 0.45±0.07
mnist-cif10  | 0.02±0.1       | 5.91±0.13       | 0.72±0.04      | 5.62±0.13         | 0.94±0.12      | 0.34±0.05
cif10-inv    | 0.14±0.13      | 7.25±0.28       | 0.85±0.13      | 7.22±0.32         | 1.18±0.18      | 0.57±0.08
cif-imgnet   | 0.27±0.13      | 19.37±0.14      | 0.73±0.09      | 19.62±0.35        | 1.02±0.27      | 0.38±0.35
""",
    ),
    4: (
        """
method        | pmnist     | smnist     | cif10       | cif100-10  | cif100-20   | imgnet-10  | imgnet-20
Separate: acc | 97.9±0.0   | 99.44±0.15 | 93.1±2.03   | 70.96±0.32 | 80.1±0.89   | 53.76±1.04 | 67.3±0.62
GE: acc       | 97.9±0.07  | 99.54±0.09 | 89.06±4.05  | 51.96±6.31 | 65.62±5.76  | 31.02±5.3  | 49.26±3.17
GE: gate      | 100.0±0.0  | 100.0±0.0  | 96.78±3.36  | 73.02±8.41 | 81.04±7.09  | 59.0±9.45  | 71.5±5.76
GE: exp       | 20         | 5          | 5           | 10         | 20          | 10         | 20
HGE: acc      | 82.3±7.01  | 99.48±0.04 | 87.08±9.1   | 47.42±4.62 | 67.76±7.92  | 30.68±2.07 | 42.48±6.28
HGE: gate     | 82.18±8.03 | 100.0±0.0  | 92.25±10.21 | 68.28±5.75 | 83.54±10.41 | 57.5±3.95  | 61.5±9.78
HGE: exp      | 8.75±0.97  | 4.37±0.49  | 4.26±0.61   | 10.0±0.0   | 17.79±1.23  | 9.91±0.19  | 18.91±0.54
BGD: acc      | 79.15      | 19.00      | N/A         | N/A        | 3.77        | N/A        | N/A
HCL: acc      | N/A        | 90.89      | 89.44       | 59.66      | N/A         | N/A        | N/A
TAME: acc     | 87.32      | 98.63      | 91.32       | 61.06      | 62.39       | N/A        | N/A
HVCL: acc     | 97.47      | 98.60      | 81.00       | 37.20      | N/A         | N/A        | N/A
CN-DPM: acc   | N/A        | 93.23      | 46.98       | N/A        | 20.10       | N/A        | N/A
SNCL: acc     | 92.93      | N/A        | 90.41       | N/A        | N/A         | N/A        | 39.83
DER: acc      | 91.66      | N/A        | 83.81       | 74.64      | 73.98       | N/A        | 36.73
HN: acc       | N/A        | N/A        | N/A         | N/A        | 73.6        | N/A        | 39.9
""",
    ),
    5: (
        """
method        | mnist-kmnist | mnist-cif10 | cif10-inv  | cif-imgnet
Separate: acc | 99.54±0.05   | 96.56±0.62  | 93.4±1.26  | 63.5±0.71
GE: acc       | 99.38±0.16   | 95.26±1.42  | 90.3±1.86  | 41.68±4.65
GE: gate      | 100.0±0.0    | 98.52±1.22  | 96.88±1.16 | 66.16±8.2
GE: exp       | 10           | 10          | 10         | 20
HGE: acc      | 94.18±8.33   | 88.62±7.65  | 85.84±8.09 | 37.6±3.74
HGE: gate     | 93.16±8.45   | 91.76±7.51  | 91.9±8.01  | 59.9±7.23
HGE: exp      | 6.66±1.22    | 5.08±0.31   | 7.47±1.56  | 19.22±0.65
""",
    ),
}
