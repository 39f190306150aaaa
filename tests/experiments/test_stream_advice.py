from __future__ import annotations

from typing import Any

import pytest

from hge.experiments.stream_advice import advise


def method(name: str, accuracy: float, retention: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "accuracy": accuracy, "retention": retention, **more}


def ours(accuracy: float, retention: float, experts: int = 1) -> dict[str, Any]:
    switches = [{"row": 100 * n, "expert": n, "new": True} for n in range(1, experts)]
    return method("GatedExperts", accuracy, retention, experts=experts, switches=switches)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ([ours(90, 90), method("SGDClassifier", 90.5, 89.5)], "found no switch. SGDClassifier is as good"),
        ([ours(80, 90), method("SGDClassifier", 90, 90)], "SGDClassifier is better"),
        ([ours(80, 70), method("GaussianNB", 85, 85), method("ARF", 90, 90)], "ARF is better (90.0 vs 80.0 %"),
        (
            [ours(80, 90, experts=3), method("ARF", 90, 60)],
            "found 2 switches (2 to a new expert, 0 back to a known one). ARF follows the stream more closely",
        ),
        ([ours(90, 60), method("replay-MLP", 80, 90)], "replay-MLP retains earlier segments better"),
        ([ours(90, 90, experts=2), method("ARF", 80, 80)], "use GatedExperts. The inputs distinguish the segments."),
        ([ours(90, 90), method("ARF", 80, 80)], "%): use GatedExperts."),
        ([ours(60, 60), method("ARF", 60, 60), method("majority", 60.5, 55)], "than majority (60.5 %): at this batch"),
        ([ours(60, 60), method("ARF", 60, 60), method("no-change", 95, 5)], "than no-change (95.0 %): labels come in"),
        (
            [method("ARF", 60, 60), method("GaussianNB", 70, 60)],
            "GaussianNB has the best figures of those compared; compare it with GatedExperts and others.",
        ),
        (
            [method("no-change", 40, 40), ours(60, 60)],
            "GatedExperts has the best figures of those compared; compare it with other methods.",
        ),
    ],
)
def test_advice_follows_from_the_figures(methods: list[dict[str, Any]], expected: str) -> None:
    advice = advise(methods, counted=9_000, held_out=1_000)
    assert expected in advice
    assert "\n" not in advice


def test_differences_that_few_rows_do_not_support_are_ignored() -> None:
    methods = [ours(80, 80), method("SGDClassifier", 80, 83)]
    assert "is as good" in advise(methods, counted=9_000, held_out=100)
    assert "is better" in advise(methods, counted=9_000, held_out=10_000)
    assert advise(methods, counted=100, held_out=10).startswith("Only 100 rows are counted")
