"""Streams with changing concepts, prequentially: `GatedExperts` beside other methods; accuracy, retention and cost.

Test, then train, in batches of 32, one pass; the first batch is not counted. `GatedExperts` receives the inputs in raw
units, all other methods standardised by the first 5 % of the rows. Retention: accuracy at the end on held-out rows of
each concept, one call of `predict` per concept, mean over concepts. Where the concepts of a stream are not known, ten
consecutive parts take their place, and one of every ten rows is held out, as in `hge evaluate`.

    python benchmarks/streams.py --list
    python benchmarks/streams.py --seeds 0-2 --processes 2
    python benchmarks/streams.py stagger elec --methods GatedExperts,window-kNN,replay-MLP --out runs/streams

Each stream and seed is one file: results/streams/NAME-seedN.json (or --out); methods that are not run again keep their
figures there, each with its commit. Images (MNIST, KMNIST and, if it is there,
Fashion-MNIST: the four idx files in NAME/raw) and recorded streams (streams/NAME.npz) are read from HGE_DATA; image
segments, bananas and phishing from river's package, if it is installed. `make results` generates docs/streams.md.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from hge.core.files import write_json
from hge.data.named_streams import STREAMS
from hge.experiments.run_files import environment
from hge.experiments.stream_evaluation import HELD_OUT_EVERY, MethodResult, evaluate_stream
from hge.experiments.stream_opponents import STREAM_METHODS, build_methods, rows_kept
from hge.experiments.stream_tables import KIND

BATCH, SEGMENTS = 32, 10
METHODS = ",".join(name for name, entry in STREAM_METHODS.items() if not entry.needs)


def main() -> None:
    """Evaluate the methods on the streams, in several processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="streams (default: all whose files are found)")
    parser.add_argument("--list", action="store_true", help="list the streams, and the files that were not found")
    parser.add_argument("--seeds", default="0-2", help="first-last")
    parser.add_argument("--methods", default=METHODS, help="with commas (default: all that need no other package)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/streams"))
    options = parser.parse_args()
    missing = {name: stream.missing for name, stream in STREAMS.items() if stream.missing}
    if options.list:
        for name, stream in STREAMS.items():
            print(f"{name:22s} {stream.about}" + (f" (not found: {missing[name][0]})" if name in missing else ""))
        return
    for name in options.names:
        if name not in STREAMS:
            parser.error(f"NAME: got {name!r}, expected some of {', '.join(STREAMS)}")
        if name in missing:
            parser.error(f"{name}: {missing[name][0]} was not found")
    if missing and not options.names:
        print(f"Left out, because their files were not found: {', '.join(missing)}", flush=True)
    names = options.names or [name for name in STREAMS if name not in missing]
    first, _, last = options.seeds.partition("-")
    pairs = [(name, seed) for name in names for seed in range(int(first), int(last or first) + 1)]
    where = environment() | {"threads": 1, "processes": options.processes}
    work = partial(run, methods=options.methods.split(","), out=options.out, where=where)
    with Pool(options.processes) as pool:
        failed = 0
        for done, lines in pool.imap_unordered(partial(attempt, work), pairs):
            failed += not done
            print(lines, flush=True)
    if failed:
        raise SystemExit(f"{failed} of {len(pairs)} failed")


def attempt(work: Callable[[tuple[str, int]], str], pair: tuple[str, int]) -> tuple[bool, str]:
    """Return whether the work was done, and what it says: a failure is no reason not to run the other streams."""
    try:
        return True, work(pair)
    except Exception:
        return False, f"{pair[0]} {pair[1]}: failed\n{traceback.format_exc()}"


def run(pair: tuple[str, int], methods: list[str], out: Path, where: dict[str, Any]) -> str:
    """Evaluate the methods on a stream with a seed and write the result; return a line for each method."""
    name, seed = pair
    torch.set_num_threads(1)
    stream = STREAMS[name].draw(seed)
    known = list(stream.held_out.values())
    with threadpool_limits(1):
        built = build_methods(methods, stream.x, stream.y, seed)
        found = evaluate_stream(
            stream.x, stream.y, built, batch=BATCH, segments=SEGMENTS, held_out=known or HELD_OUT_EVERY
        )
    learned = BATCH + len(found.counted)
    figures = {
        r.name: method_figures(r, learned) | {"rows_kept": rows_kept(built[r.name]), "commit": where["commit"]}
        for r in found.methods
    }
    retention = "held-out rows of each concept" if known else f"one of {HELD_OUT_EVERY} rows of {SEGMENTS} equal parts"
    result = {
        "kind": KIND,
        "stream": name,
        "about": STREAMS[name].about,
        "rows": len(stream),
        "rows_counted": len(found.counted),
        "rows_held_out": sum(len(y) for _, y in known) or len(stream) - learned,
        "features": stream.x.shape[1],
        "classes": len(np.unique(stream.y)),
        "concepts": len(known) or None,
        "visits": 1 + int(np.count_nonzero(np.diff(stream.concept))) if known and "blended" not in name else None,
        "methods": figures,
        "protocol": {
            "seed": seed,
            "batch": BATCH,
            "evaluation": "test, then train; one pass; the first batch is not counted",
            "retention": f"{retention}, one call of predict each, mean",
            "inputs": "GatedExperts: raw; others: standardised by the first 5 % of the rows",
            **where,
        },
    }
    file = out / f"{name}-seed{seed}.json"
    result["methods"] = figures_before(file) | figures
    write_json(file, result)
    return "\n".join(
        f"{name} {seed} {method}: {f['accuracy']:.1f}, retention {f['retention']:.1f}, "
        f"{f['cpu_seconds_per_1000_rows']:.2f} s/1000 rows" + (f", {f['experts']} experts" if "experts" in f else "")
        for method, f in figures.items()
    )


def figures_before(file: Path) -> dict[str, Any]:
    """Return the figures of all methods in a file of the same stream and seed, if there is one."""
    if not file.exists():
        return {}
    result = json.loads(file.read_text())
    return {name: {"commit": result["protocol"]["commit"]} | found for name, found in result["methods"].items()}


def method_figures(result: MethodResult, learned: int) -> dict[str, Any]:
    """Return a method's figures as JSON values."""
    return {
        "accuracy": round(result.accuracy, 3),
        "retention": None if result.retention is None else round(result.retention, 3),
        "by_concept": [round(value, 3) for value in result.by_concept],
        "seconds": round(result.seconds, 3),
        "cpu_seconds_per_1000_rows": round(1000 * result.cpu_seconds / learned, 4),
        **result.figures,
    }


if __name__ == "__main__":
    main()
