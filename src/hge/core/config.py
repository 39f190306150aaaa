"""Settings as frozen dataclasses. Defaults are the library's own; `experiments/recipes.py` has the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hge.core.settings import check_types, read_fields, require

ScoreName = Literal["sketch", "class-sketch", "autoencoder"]
Precision = Literal["fp32", "tf32", "bf16"]
OnBadBatch = Literal["raise", "skip"]


@dataclass(frozen=True)
class LearnerConfig:
    """Algorithm 1 and Section 3.1."""

    epsilon: float = 4.0
    """ε: a batch has a high loss if its loss is above μ + εσ."""
    alpha: float = 0.9
    """Smoothing factor of the mean and the deviation of the loss."""
    recent_capacity: int = 20
    """Capacity of R, the buffer of recent batches, in batches."""
    replay_capacity: int = 10
    """Training batches that each expert keeps for replay (a reservoir)."""
    review: bool = True
    """Test a persistently high loss against the expert's replay before creating an expert."""
    review_threshold: float = 20.0
    """ε_review: a Z-score above this indicates another task."""
    robust_review: bool = True
    """Test with the median of the replay losses and the spread about it, which a stray batch in the replay does not
    change. False: mean and standard deviation, as in the paper."""
    max_experts: int = 0
    """Maximum number of experts; beyond it, a new task is assigned to the expert that fits it best. 0: no limit.
    Experimental: no published result uses it."""
    review_last_used: bool = True
    """Also review the expert in use before creating another. False: only the gate's choice, as the paper is written."""
    organisation: Literal["flat", "tree", "lca"] = "flat"
    """flat: GE. tree: HGE with a shortlist of the best sketches (gating/shortlist.py). lca: HGE as in the paper."""
    path_coverage: float = 0.98
    """lca: share of a newcomer's batches whose paths determine its position in the tree."""
    promotion_window: int = 50
    """Batches over which a newcomer is compared with the gate's choice."""
    promotion_rate: float = 0.5
    """ε_promotion: a newcomer is promoted if its score is the lower one in more than this share of the window."""
    promote_by_replay: bool = True
    """flat: promote a newcomer as soon as that improves the routing of the replay. False: by the window only, as in the
    paper."""
    sticky: bool = True
    """Section 3.3's suggestion: do not query the gate while the last-used promoted expert accepts."""
    newcomers_answer: bool = True
    """Let newcomers that were never promoted predict, too."""
    joint: bool = False
    """Predict with the joint score (experts/joint), which is refitted to the replay during the stream."""
    discriminant: bool = False
    """Complete the joint score by a linear discriminant analysis of all rows (experts/joint/discriminant.py): for
    features of a pretrained backbone."""
    label_evidence: bool = False
    """Labels that an expert was not trained on count against it, and a batch that the gate's choice refuses goes to any
    other expert that accepts it. False: only newcomers are asked, as in the paper."""
    error_rate: float = 0.0
    """Probability that outliers are taken for a new task, at which a review begins before R is full
    (`switch_detection.OutlierRate`). 0: only when R is full, as in the paper."""
    memory_rows: int = 0
    """Rows that each expert keeps for its companions (experts/companions) and for rehearsal. 0: neither."""
    merge_experts: bool = False
    """Merge an expert into the one in use if that explains its replay (learning/merging.py); flat and without `joint`.
    """
    signed_deviation: bool = False
    """The paper's deviation as written, which diverges; kept for the test that shows this.
    Experimental: no published result uses it."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.epsilon > 0, "epsilon", self.epsilon, "a number above 0")
        require(0 <= self.alpha < 1, "alpha", self.alpha, "at least 0 and below 1")
        require(self.recent_capacity >= 3, "recent_capacity", self.recent_capacity, "at least 3")
        require(self.replay_capacity >= 2, "replay_capacity", self.replay_capacity, "at least 2")
        require(self.joint or not self.discriminant, "discriminant", self.discriminant, "joint=True beside it")
        require(self.max_experts >= 0, "max_experts", self.max_experts, "0 or more")
        require(self.review_threshold >= 0, "review_threshold", self.review_threshold, "0 or more")
        require(0 < self.path_coverage <= 1, "path_coverage", self.path_coverage, "above 0 and at most 1")
        require(0 <= self.error_rate < 1, "error_rate", self.error_rate, "at least 0 and below 1")
        require(self.memory_rows >= 0, "memory_rows", self.memory_rows, "0 or more")
        require(self.promotion_window >= 1, "promotion_window", self.promotion_window, "at least 1")
        require(0 <= self.promotion_rate < 1, "promotion_rate", self.promotion_rate, "at least 0 and below 1")


@dataclass(frozen=True)
class OptimiserConfig:
    """How an expert and its score are trained. The paper uses one optimiser for both."""

    name: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    """For sgd."""
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    """Maximum gradient norm of the autoencoder; without it the convolutional one diverges. 0: no clipping."""
    average: float = 0.0
    """Decay of the moving average of the weights, used for prediction (experts/weight_average.py). 0: no average."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.lr > 0, "lr", self.lr, "a number above 0")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(0 <= self.average < 1, "average", self.average, "at least 0 and below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        require(self.clip_norm >= 0, "clip_norm", self.clip_norm, "0 or more")


@dataclass(frozen=True)
class ScoreConfig:
    """The score, which measures how suitable an expert is for an input, and its settings."""

    name: ScoreName = "sketch"
    components: int = 0
    """sketches: dimensions of the space that all experts share. 0: half the number of inputs, at most 64.
    results/choices/sketch.json compares other values."""
    kl_weight: float | Literal["elbo"] = 1.0
    """autoencoder: weight of the KL divergence. 1: as in the paper. "elbo": one over the number of inputs.
    "elbo" is experimental: no published result uses it."""
    variational: bool = True
    """autoencoder: sample the latent in training. False: the paper's ablation."""
    sampled: bool = False
    """autoencoder: compare experts at samples of the latent, one for each row of a batch, instead of at its mean."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self.components >= 0, "components", self.components, "0 or more")
        if self.kl_weight != "elbo":
            require(self.kl_weight >= 0, "kl_weight", self.kl_weight, '0 or more, or "elbo"')


@dataclass(frozen=True)
class TameConfig:
    """The baseline TAME (baselines/tame.py)."""

    window: int = 100
    """Number of losses over which mean and standard deviation are computed."""
    warmup: int = 2
    """Number of losses before a bound is set."""
    deviations: float = 3.0
    smoothing: float = 0.2
    """Weight of the newest loss in the smoothed loss."""
    buffer: int = 5000
    """Samples kept by all experts together."""
    selector_epochs: int = 200
    selector_batch: int = 128

    def __post_init__(self) -> None:
        check_types(self)
        require(self.window >= 2, "window", self.window, "at least 2")
        require(2 <= self.warmup <= self.window, "warmup", self.warmup, "at least 2, at most the window")
        require(self.deviations > 0, "deviations", self.deviations, "a number above 0")
        require(0 < self.smoothing <= 1, "smoothing", self.smoothing, "above 0 and at most 1")
        for name in ("buffer", "selector_epochs", "selector_batch"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")


@dataclass(frozen=True)
class BaselineConfig:
    """The other baselines (baselines/). A line of `experiments.methods.METHODS` may set its own values."""

    memory: int = 0
    """Rows that a replay method keeps. 0: as many as the replay of GE, `replay_capacity` batches for each task."""
    logit_weight: float = 0.5
    """DER, DER++: weight of the stored logits (α)."""
    label_weight: float = 0.0
    """DER++: weight of the stored labels (β). 0: DER."""
    consolidate: Literal["told", "every", "detected"] = "told"
    """EWC, SI, LwF, DGR, HVCL, expandable: protect what was learned at told boundaries, regularly, or where a switch is
    detected."""
    consolidate_every: int = 100
    """every: number of batches."""
    penalty: float = 1.0
    """EWC (λ), SI (c), LwF and HCL-FR (α), HN, HVCL, SNCL: weight of what protects earlier tasks."""
    deviation: float = 0.05
    """BGD: initial standard deviation of the weights."""
    labels_trick: bool = False
    """BGD: the loss is over the labels that are in the batch only."""
    features: int = 2000
    """RanPAC, RanDumb: number of random features."""
    shrinkage: float = 1e-3
    """SLDA, RanPAC, RanDumb: weight of the identity, relative to the mean variance."""
    functional: bool = True
    """HCL: what it draws keeps its latents (HCL-FR). False: its likelihood (HCL-GR)."""
    lateral: bool = False
    """CN-DPM: later experts see the hidden units of earlier ones."""
    log_alpha: float = -400.0
    """CN-DPM: how readily a new expert is made; the higher, the more."""
    short_term: int = 500
    """CN-DPM: rows that make a new expert."""
    sleep_steps: int = 8000
    """CN-DPM: training steps of a new expert's autoencoder; its classifier has a quarter of them."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("memory", "logit_weight", "label_weight", "penalty"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(self.consolidate_every >= 1, "consolidate_every", self.consolidate_every, "at least 1")
        require(self.deviation > 0, "deviation", self.deviation, "a number above 0")
        for name in ("features", "short_term", "sleep_steps"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(0 < self.shrinkage <= 1, "shrinkage", self.shrinkage, "above 0 and at most 1")


@dataclass(frozen=True)
class RunConfig:
    """One run of one learner on one scenario: all settings that determine its outcome."""

    scenario: str
    method: str = "ge"
    """One of `experiments.methods.METHODS`."""
    recipe: Literal["default", "paper", "best", "backbone"] = "default"
    tasks: int = 5
    epochs: int = 40
    batch_size: int = 32
    test_batch_size: int = 32
    routing: Literal["sample", "batch"] = "sample"
    """Routing shown in the report; the result contains both."""
    mix: str = ""
    """Another scenario, whose visits alternate with this one's.
    Experimental: no published result uses it."""
    labels: Literal["disjoint", "shared"] = "disjoint"
    """Labels where two data sets alternate (hybrids, `mix`). "shared": both have the labels 0, 1, 2, …"""
    visits: str = ""
    """Tasks in the order of their visits, with an optional factor on the epochs: "0 1 0:0.5 2". Empty: each once.
    Experimental: no published result uses it."""
    blend: int = 0
    """Batches over which one visit fades into the next, in deliberate violation of the paper's hard boundaries.
    Experimental: no published result uses it."""
    on_bad_batch: OnBadBatch = "raise"
    """A batch with NaN, a wrong shape or unknown labels either ends the run (which can be resumed) or is skipped.
    "skip" is experimental: no published result uses it."""
    seed: int = 0
    device: str = "cpu"
    pool: Literal["auto", "eager", "stacked"] = "auto"
    """Implementation of the expert pool: eager is the plain reference, stacked the fast one; auto selects stacked."""
    precision: Precision = "fp32"
    """Precision of products on a GPU: tf32 rounds their inputs to 10 bits, bf16 computes in 8 bits (autocast)."""
    deterministic: bool = False
    """Make runs, resumed or not, bitwise reproducible on a GPU, too, where the fastest algorithms are not."""
    images: bool = False
    """Do not flatten images to rows where the scenario does: for convolutions on digits."""
    features: str = ""
    """A network pretrained on ImageNet (experts/backbones.py), by name: all methods learn its features of the images,
    computed once before the stream. Such runs are no part of the tables. Empty: the inputs themselves.
    Experimental: no published result uses it."""
    augment: bool = False
    """Train experts on randomly flipped and cropped images."""
    views: int = 1
    """Views of every input that experts tell apart: rotations of an image, cyclic shifts of other rows
    (experts/views.py). Answers are averaged over them. 1: the input alone."""
    answer_views: int = 0
    """Number of views over which answers are averaged; 0: all."""
    track: bool = False
    """Record accuracy over the stream: on each batch before training, and on all tasks after each visit."""
    idle_on_host: bool = False
    """stacked: keep experts that are not in use in host memory; what the gate needs stays on the device.
    Experimental: no published result uses it."""
    net: str = "mlp"
    autoencoder: str = "mlp"
    """Network of the autoencoder score."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    tame: TameConfig = field(default_factory=TameConfig)
    baseline: BaselineConfig = field(default_factory=BaselineConfig)

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("tasks", "epochs", "batch_size", "test_batch_size"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(self.blend >= 0, "blend", self.blend, "0 or more")
        require(self.seed >= 0, "seed", self.seed, "0 or more")

    def as_json(self) -> dict[str, Any]:
        """Return all settings as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        """Read settings written by `as_json`; missing fields get their defaults."""
        parts: dict[str, type[Any]] = {
            "learner": LearnerConfig,
            "optimiser": OptimiserConfig,
            "score": ScoreConfig,
            "tame": TameConfig,
            "baseline": BaselineConfig,
        }
        made = {name: read_fields(kind, values[name]) for name, kind in parts.items() if name in values}
        return read_fields(cls, {**values, **made})
