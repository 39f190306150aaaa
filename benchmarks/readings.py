"""How must the paper's autoencoders be read, so that they gate as well as the paper says?

    python benchmarks/readings.py SCENARIO [--candidate NAME] [--epochs N] [--seed 100] [--device cuda] [--out FILE]

An autoencoder per task, trained as in recipe `paper`, with one reading changed (`CANDIDATES`). A tenth of the training
rows, by content hash, is the validation part; seeds are 100 and above. Batches of 128 rows of one task and single rows
are routed to the autoencoder with the lowest loss, in several ways (`evaluate`). Results: results/choices/readings/.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.core.types import as_float
from hge.data.holdout import validation_scenario
from hge.data.scenarios import Scenario
from hge.experiments.build import build_scenario, build_spec
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment
from hge.experts.fast.cuda_graphs import Graphs
from hge.experts.networks import ConvVAE
from hge.experts.optim import arithmetic, autocast, network_mode
from hge.experts.scores.autoencoder import AutoencoderScore

GROUP = 128
SHUFFLES = 3
"""Times that the validation rows are divided into groups."""
SINGLE_DRAWS = (1, 2, 4, 8, 16)
EPOCHS = (4, 10, 20, 40, 100, 200, 400)


class StockVAE(ConvVAE):
    """The appendix's network as torch initialises it, its log-variance unbounded."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.mean.reset_parameters()
        self.log_variance.reset_parameters()

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log-variance of the latent."""
        h = self.encoder(x)
        return self.mean(h), self.log_variance(h)


class SummedError(AutoencoderScore):
    """The squared error summed over the pixels, as the KL divergence is over the latents."""

    def forward(self, x: Tensor, noises: Sequence[Tensor | None]) -> Tensor:
        """Return the loss of each row."""
        return x[0].numel() * super().forward(x, noises)


class InBfloat16(AutoencoderScore):
    """Products of 16-bit numbers, as in the networks of runs with `precision=bf16`."""

    def __init__(self, net: Any, *settings: Any) -> None:
        super().__init__(net, *settings)
        for part in (*net.children(),):
            part.forward = _in_16_bits(part.forward)


def _in_16_bits(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def cast(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            return forward(x).float()

    return cast


Change = dict[str, Any]
CANDIDATES: dict[str, Change] = {
    "recipe": {},
    "KL weight 1/D": {"kl_weight": "elbo"},
    "error summed over pixels": {"kl_weight": "elbo", "kind": SummedError},
    "KL summed over the batch": {"kl_weight": 128.0},
    "no KL": {"kl_weight": 0.0},
    "plain autoencoder": {"variational": False},
    "stock initialisation": {"net": StockVAE},
    "no clipping": {"clip_norm": 0.0},
    "stock initialisation, no clipping": {"net": StockVAE, "clip_norm": 0.0},
    "small last batch dropped": {"drop_last": True},
    "bfloat16": {"kind": InBfloat16},
    "fp32": {"precision": "fp32"},
    "other optimiser": {"other_optimiser": True},
}


def train(
    scenario: Scenario,
    config: Any,
    change: Change,
    keys: Keys,
    first: int,
    epochs: int,
    evaluate: Callable[[int, list[Any]], None],
) -> None:
    """Train an autoencoder per task, all tasks epoch by epoch; evaluate at the epochs of interest."""
    spec, device = build_spec(config, scenario), torch.device(config.device)
    optimiser = replace(spec.optimiser, clip_norm=change.get("clip_norm", spec.optimiser.clip_norm))
    if change.get("other_optimiser"):
        adam = optimiser.name == "sgd"
        optimiser = OptimiserConfig("adam" if adam else "sgd", 0.001 if adam else 0.01, clip_norm=optimiser.clip_norm)
    settings = {name: change[name] for name in ("kl_weight", "variational") if name in change}
    factory, kind = change.get("net", spec.autoencoder), change.get("kind", AutoencoderScore)
    graphs, scores, data = Graphs(device), [], []
    for number, task in enumerate(scenario.tasks):
        with keys.seeded("weights", number, device=device):
            net = factory(spec.shape).to(device)
            if len(spec.shape) == 3:
                net = net.to(memory_format=torch.channels_last)
            score_config = ScoreConfig("autoencoder", sampled=True, **settings)
            scores.append(kind(net, spec.shape, score_config, optimiser, keys, device).to(device).eval())
        data.append(task.train.whole().x.to(device))
    skip, step = torch.zeros((), device=device), 0

    def update(score: AutoencoderScore, x: Tensor, noise: Tensor | None) -> Tensor:
        with arithmetic(config.precision, device), autocast(config.precision, device):
            score.compute_update(prepare(x), x, noise)
            score.apply_update(skip)
        return skip

    for number, (score, rows) in enumerate(zip(scores, data, strict=True)):
        kept, graphs = [], Graphs(device)
        generator = torch.Generator(device)
        for epoch in range(1, epochs + 1):
            order = torch.from_numpy(keys.rng("shuffle", number, epoch).permutation(len(rows))).to(device)
            for part in torch.split(order, GROUP):
                if change.get("drop_last") and len(part) < GROUP:
                    continue
                generator.manual_seed(keys.integer("noise", step, number))
                noise = score.draw_noise(len(part), generator)
                graphs("step", lambda x, noise, score=score: update(score, x, noise), rows[part], noise)
                step += 1
            if epoch >= first and (epoch in EPOCHS or epoch == epochs):
                kept.append((epoch, {n: t.detach().clone() for n, t in score.state_dict().items()}))
        score.kept = kept
        print(f"task {number}: {step} steps", flush=True)
    for place, (epoch, _) in enumerate(scores[0].kept):
        for score in scores:
            score.load_state_dict(score.kept[place][1])
        evaluate(epoch, scores)


def prepare(x: Tensor) -> Tensor:
    """Return the inputs as the networks expect them."""
    x = as_float(x)
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


@torch.no_grad()
def losses(score: AutoencoderScore, x: Tensor, noises: list[Tensor | None], *, batch: bool, config: Any) -> Tensor:
    """Return the losses [noises, rows] of rows, with batch or running statistics; rows are encoded once."""
    device, encode = torch.device(config.device), score.net.encode
    with (
        arithmetic(config.precision, device),
        autocast(config.precision, device),
        network_mode(score.network, training=False, rows=len(x), batch_statistics=batch),
    ):
        encoded = encode(x)
        try:
            score.net.encode = lambda x: encoded  # type: ignore[method-assign]
            return torch.stack([score(x, [noise]).double() for noise in noises])
        finally:
            del score.net.encode


def evaluate_gate(
    scenario: Scenario, scores: list[AutoencoderScore], keys: Keys, config: Any, count: int
) -> dict[str, Any]:
    """Return the percentage of validation batches and rows that reach their autoencoder, by ways of scoring."""
    device = torch.device(config.device)
    rows = [prepare(task.test.whole().x.to(device)) for task in scenario.tasks]
    noise = torch.randn(count, GROUP, *scores[0].latents, generator=torch.Generator().manual_seed(1)).to(device)
    ways: dict[str, list[Tensor | None]] = {"mean": [None]}
    if scores[0].variational:
        ways |= {"one draw for all rows": [*noise[:, :1]], "a draw per row": [*noise]}
    flat = [draw for draws in ways.values() for draw in draws]
    right: dict[str, list[list[bool]]] = {f"{w}, {s}": [] for w in ways for s in ("batch statistics", "running")}
    for own, x in enumerate(rows):
        for shuffle in range(SHUFFLES):
            order = torch.from_numpy(keys.rng("split", own, shuffle).permutation(len(x))).to(device)
            for part in torch.split(order, GROUP):
                if len(part) < GROUP:
                    continue
                for statistics, batch in (("batch statistics", True), ("running", False)):
                    found = torch.stack([losses(s, x[part], flat, batch=batch, config=config).mean(1) for s in scores])
                    hit, start = (found.argmin(0) == own).tolist(), 0
                    for way, draws in ways.items():
                        right[f"{way}, {statistics}"].append(hit[start : start + len(draws)])
                        start += len(draws)
    result: dict[str, Any] = {}
    for way, hits in right.items():
        shares = 100 * np.mean(np.array(hits, dtype=float), axis=0)
        result[way] = {"mean": round(float(shares.mean()), 2), "draws": [round(float(s), 2) for s in shares]}
    if scores[0].variational:
        result["single rows, by draws"] = _single_rows(rows, scores, config)
    return result


def _single_rows(rows: list[Tensor], scores: list[AutoencoderScore], config: Any) -> dict[str, float]:
    """Return the percentage of single rows that reach their autoencoder, by the number of draws averaged over."""
    right: dict[int, list[float]] = {count: [] for count in SINGLE_DRAWS}
    for own, x in enumerate(rows):
        draws = [*scores[0].draws[: max(SINGLE_DRAWS), None]]  # type: ignore[index]
        found = torch.stack([losses(score, x, draws, batch=False, config=config) for score in scores])
        for count in SINGLE_DRAWS:  # of [experts, draws, rows]
            right[count].append(float((found[:, :count].mean(1).argmin(0) == own).double().mean()))
    return {str(count): round(100 * float(np.mean(shares)), 2) for count, shares in right.items()}


def main() -> None:
    """Train, evaluate, and write JSON after every evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("--candidate", default="recipe", choices=CANDIDATES)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--from-epoch", type=int, default=1, help="first epoch at which the gate is evaluated")
    parser.add_argument("--draws", type=int, default=8, help="draws of the noise that are compared")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    change, keys = CANDIDATES[options.candidate], Keys(options.seed)
    config = build_config(options.scenario, recipe="paper")
    config = replace(config, device=options.device, precision=change.get("precision", options.precision))
    scenario = validation_scenario(build_scenario(config, keys, options.data))
    rows: list[dict[str, Any]] = []

    def evaluate(epoch: int, scores: list[AutoencoderScore]) -> None:
        finite = all(t.isfinite().all() for score in scores for t in score.state_dict().values())
        found = evaluate_gate(scenario, scores, keys, config, options.draws) if finite else "not finite"
        rows.append({"epochs": epoch, "gate_accuracy": found})
        print(options.scenario, options.candidate, epoch, found, flush=True)
        protocol = {"scenario": options.scenario, "candidate": options.candidate, "seed": options.seed}
        protocol |= {"precision": config.precision, "part": "validation"} | environment()
        write_json(options.out, {"rows": rows, "protocol": protocol})

    train(scenario, config, change, keys, options.from_epoch, options.epochs or config.epochs, evaluate)


if __name__ == "__main__":
    main()
