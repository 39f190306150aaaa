"""What can be set of a `GatedExperts`, as scikit-learn wants it: names, defaults, what each is for."""

from __future__ import annotations

from typing import Literal

from sklearn.base import BaseEstimator

from hge.core.config import OnBadBatch, Precision
from hge.experts.networks import AutoencoderFactory, NetFactory
from hge.learning.online import Routing


class Parameters(BaseEstimator):  # type: ignore[misc]
    """The parameters of a `GatedExperts`."""

    def __init__(
        self,
        *,
        net: str | NetFactory = "mlp",
        scale: Literal["standard", "none"] = "standard",
        gate_score: Literal["sketch", "class-sketch", "autoencoder"] = "sketch",
        joint: bool = False,
        mixture: bool = False,
        autoencoder: str | AutoencoderFactory = "mlp",
        batch_size: int = 32,
        epochs: int = 10,
        routing: Routing = "sample",
        class_capacity: int = 64,
        organisation: Literal["flat", "tree", "lca"] = "flat",
        max_experts: int = 0,
        on_bad_batch: OnBadBatch = "raise",
        epsilon: float = 4.0,
        review: bool = True,
        review_threshold: float = 20.0,
        promotion_window: int = 50,
        promotion_rate: float = 0.5,
        sticky: bool = True,
        newcomers_answer: bool = True,
        components: int = 0,
        kl_weight: float | Literal["elbo"] = 1.0,
        optimiser: Literal["sgd", "adam"] = "sgd",
        lr: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        average: float = 0.0,
        device: str = "auto",
        pool: Literal["auto", "eager", "stacked"] = "auto",
        precision: Precision = "fp32",
        idle_on_host: bool = False,
        random_state: int | None = 0,
    ) -> None:
        """Keep the parameters; nothing is checked or built before the first rows come.

        Parameters
        ----------
        net : {"mlp", "mlp-wide", "mlp-relu-logits", "resnet18", "resnet18-cifar", "conv4"} or callable
            Network of every expert, or a factory `(shape of one input, outputs) -> nn.Module` that returns logits.
        scale : {"standard", "none"}
            Standardise the inputs inside every expert, by the mean and the standard deviation of the rows that it was
            trained on (rows: of each feature; images: of each channel), and clip what is more than 10 standard
            deviations away. Or pass them on as they are: then they should be about 0…1.
        gate_score : {"sketch", "class-sketch", "autoencoder"}
            How an expert's suitability for an input is measured: a Gaussian of what it learned, one of each of its
            classes (better on single rows, costs more), or the paper's autoencoder.
        joint : bool
            Choose who answers by all that all experts know of a row, calibrated on what they remember.
        mixture : bool
            With `joint`, `predict` and `predict_proba` weigh the answers of all experts instead of choosing one.
        autoencoder : {"mlp", "conv"} or callable
            Network of the autoencoder score, or a factory `(shape of one input) -> nn.Module` with `encode`, `decode`.
        batch_size : int
            Rows that are learned together. Rows short of a batch wait for the next call, or for `flush()`.
        epochs : int
            How often `fit` goes through its rows; `partial_fit` goes through them once.
        routing : {"sample", "batch", "window"}
            At prediction, choose an expert for each row by itself, or one for all rows of the call; or take the rows as
            consecutive ones of a stream that seldom changes, for which the score must be a likelihood (all but
            `autoencoder`, or `joint`). A mixture looks at each row by itself.
        class_capacity : int
            Outputs that every expert's head reserves. Classes appear as they come, up to this many.
        organisation : {"flat", "tree", "lca"}
            Ask all experts (GE); ask for costly scores, the autoencoder's or the joint's, only those with the best
            sketches ("tree"); or go through the paper's tree (HGE).
        max_experts : int
            No more experts than this; a new task then goes to the expert that knows it best, which may forget.
            0: no limit.
        on_bad_batch : {"raise", "skip"}
            What `partial_fit` does with rows that cannot be learned (NaN, another shape, unknown labels, none at all):
            an error, or an event. Either way nothing changes. A wrong parameter is always an error.
        epsilon, review, review_threshold, promotion_window, promotion_rate, sticky, newcomers_answer
            See `hge.core.config.LearnerConfig`.
        components, kl_weight
            See `hge.core.config.ScoreConfig`.
        optimiser, lr, momentum, weight_decay, average
            See `hge.core.config.OptimiserConfig`.
        device : str
            "auto" takes a GPU if there is one.
        pool : {"auto", "eager", "stacked"}
            How the experts' networks are kept. "stacked" is fast, and "auto" takes it for the library's own networks.
            For yours it takes "eager": "stacked" asks that a network changes its buffers in place, if it has any.
        precision : {"fp32", "tf32", "bf16"}
            Of products on a GPU.
        idle_on_host : bool
            Keep experts that are not in use in the host's memory ("stacked" only); the gate's part stays on the GPU.
        random_state : int, RandomState or None
            Seed of everything random: the same rows in the same order give the same model. None: another each time.
        """
        self.net = net
        self.scale = scale
        self.gate_score = gate_score
        self.joint = joint
        self.mixture = mixture
        self.autoencoder = autoencoder
        self.batch_size = batch_size
        self.epochs = epochs
        self.routing = routing
        self.class_capacity = class_capacity
        self.organisation = organisation
        self.max_experts = max_experts
        self.on_bad_batch = on_bad_batch
        self.epsilon = epsilon
        self.review = review
        self.review_threshold = review_threshold
        self.promotion_window = promotion_window
        self.promotion_rate = promotion_rate
        self.sticky = sticky
        self.newcomers_answer = newcomers_answer
        self.components = components
        self.kl_weight = kl_weight
        self.optimiser = optimiser
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.average = average
        self.device = device
        self.pool = pool
        self.precision = precision
        self.idle_on_host = idle_on_host
        self.random_state = random_state
