"""The available scenarios: the paper's eleven (Section 5), its side experiment, three on digits, and user images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hge.data.scenario_builders import (
    Request,
    hybrid,
    image_folder,
    permuted,
    recurring_digits,
    split_classes,
    split_digits,
    superclass_pairs,
)
from hge.data.transforms import AsIs, Flatten, Invert, ToColour

if TYPE_CHECKING:
    from hge.data.scenarios import Scenario


@dataclass(frozen=True)
class PaperSettings:
    """Settings per scenario from the paper's appendix; the recipes start from them."""

    epochs: int = 40
    promotion_rate: float = 0.98
    """ε_promotion of HGE; GE's is 0.5 everywhere."""
    convolutional: bool = False
    adam: bool = False


@dataclass(frozen=True)
class ScenarioInfo:
    """A scenario that can be built, with a description and its settings."""

    name: str
    about: str
    tasks: int
    """Default number of tasks."""
    build: Callable[[Request], Scenario]
    datasets: tuple[str, ...] = ()
    """Required data sets; none for the bundled digits."""
    paper: PaperSettings = PaperSettings()
    unlimited: bool = False
    """Whether there may be more tasks than by default."""

    @property
    def batch_size(self) -> int:
        """The paper's, and a smaller one for the few digits."""
        return 128 if self.datasets else 32

    @property
    def is_hybrid(self) -> bool:
        """Whether the tasks of two data sets alternate."""
        return isinstance(self.build, partial) and self.build.func is hybrid


# The digits and image-folder scenarios are ours, with the paper's settings for MNIST and CIFAR-10.
CIFAR10 = PaperSettings(200, 0.95, convolutional=True)


def _photographs(promotion_rate: float) -> PaperSettings:
    return PaperSettings(400, promotion_rate, convolutional=True, adam=True)


SCENARIOS: dict[str, ScenarioInfo] = {
    info.name: info
    for info in (
        ScenarioInfo("split-digits", "8×8 digits, 2 classes per task", 5, split_digits),
        ScenarioInfo(
            "permuted-digits",
            "8×8 digits, pixels permuted per task",
            10,
            partial(permuted, "digits"),
            paper=PaperSettings(20),
            unlimited=True,
        ),
        ScenarioInfo(
            "recurring-digits",
            "split-digits in the order A B A C B D A E C",
            5,
            recurring_digits,
        ),
        ScenarioInfo(
            "pmnist",
            "MNIST, pixels permuted per task",
            20,
            partial(permuted, "mnist"),
            ("mnist",),
            unlimited=True,
        ),
        ScenarioInfo(
            "smnist",
            "MNIST, 2 classes per task",
            5,
            partial(split_classes, "mnist", 5, Flatten()),
            ("mnist",),
        ),
        ScenarioInfo(
            "cif10",
            "CIFAR-10, 2 classes per task",
            5,
            partial(split_classes, "cifar10", 5, AsIs()),
            ("cifar10",),
            CIFAR10,
        ),
        ScenarioInfo(
            "cif100-10",
            "CIFAR-100, 10 classes per task",
            10,
            partial(split_classes, "cifar100", 10, AsIs()),
            ("cifar100",),
            _photographs(0.75),
        ),
        ScenarioInfo(
            "cif100-20",
            "CIFAR-100, 5 classes per task",
            20,
            partial(split_classes, "cifar100", 20, AsIs()),
            ("cifar100",),
            _photographs(0.80),
        ),
        ScenarioInfo(
            "imgnet-10",
            "Tiny ImageNet, 100 classes, 10 per task",
            10,
            partial(split_classes, "tiny-imagenet", 10, AsIs()),
            ("tiny-imagenet",),
            _photographs(0.5),
        ),
        ScenarioInfo(
            "imgnet-20",
            "Tiny ImageNet, 100 classes, 5 per task",
            20,
            partial(split_classes, "tiny-imagenet", 20, AsIs()),
            ("tiny-imagenet",),
            _photographs(0.65),
        ),
        ScenarioInfo(
            "mnist-kmnist",
            "MNIST and Kuzushiji-MNIST in turn",
            10,
            partial(hybrid, "mnist", "kmnist", (Flatten(), Flatten())),
            ("mnist", "kmnist"),
            PaperSettings(100),
        ),
        ScenarioInfo(
            "mnist-cif10",
            "MNIST (as RGB) and CIFAR-10 in turn",
            10,
            partial(hybrid, "mnist@32", "cifar10", (ToColour(), AsIs())),
            ("mnist", "cifar10"),
            PaperSettings(200, convolutional=True),
        ),
        ScenarioInfo(
            "cif10-inv",
            "CIFAR-10 and its negatives in turn",
            10,
            partial(hybrid, "cifar10", "cifar10", (AsIs(), Invert())),
            ("cifar10",),
            CIFAR10,
        ),
        ScenarioInfo(
            "cif-imgnet",
            "CIFAR-100 and Tiny ImageNet in turn",
            20,
            partial(hybrid, "cifar100", "tiny-imagenet", (AsIs(), AsIs())),
            ("cifar100", "tiny-imagenet"),
            _photographs(0.5),
        ),
        ScenarioInfo(
            "cif100-superclasses",
            "CIFAR-100, a pair of superclasses per task",
            10,
            superclass_pairs,
            ("cifar100",),
            _photographs(0.75),
        ),
        ScenarioInfo(
            "image-folder",
            "your images: --data DIR, a folder per class",
            2,
            image_folder,
            paper=PaperSettings(40, 0.95, convolutional=True),
            unlimited=True,
        ),
    )
}
