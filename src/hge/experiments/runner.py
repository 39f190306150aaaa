"""One run: feeds the stream to the learner, without task ids, and records the outcome."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import torch

from hge.core.config import RunConfig
from hge.core.events import Event
from hge.core.own_folder import hold
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.data.fingerprint import fingerprint
from hge.data.scenarios import Scenario
from hge.experiments.batch_feed import Feed
from hge.experiments.build import build_answers, build_learner, build_scenario, check, check_resumable
from hge.experiments.cost import ROWS, costs
from hge.experiments.feature_scenario import with_features
from hge.experiments.feature_store import OnRows
from hge.experiments.methods import METHODS
from hge.experiments.metrics import Ledger, evaluate
from hge.experiments.prequential import Tracker
from hge.experiments.recipes import changes
from hge.experiments.run_files import (
    CHECKPOINTS,
    FROM_THE_BEGINNING,
    RUN,
    RunRecorder,
    commit,
    environment,
    read_finished,
    settings_mismatch,
)
from hge.experts.optim import deterministic_algorithms
from hge.learning.checkpoint import (
    Checkpoints,
    checkpointed_batches,
    forget_checkpoints,
    has_checkpoint,
    read_checkpoint,
)
from hge.learning.online import GivenBoundaries, OnlineLearner, Routing, Step
from hge.learning.state import reading

CHECKPOINT_EVERY = 2_000
"""Number of batches between two checkpoints."""
PROTOCOL_SETTINGS = (
    "scenario",
    "method",
    "recipe",
    "tasks",
    "routing",
    "batch_size",
    "test_batch_size",
    "epochs",
    "mix",
    "visits",
    "blend",
    "seed",
)
"""Settings copied into a result's protocol."""
OnStep = Callable[[Step, int, OnlineLearner], None]
"""Called after each batch with its step, the stream's length and the learner, for a progress line."""
OnReplaced = Callable[[int], object]
"""Called with the number of batches that an interrupted run had learned, when another one replaces it."""


def run(
    config: RunConfig,
    folder: Path,
    on_step: OnStep = lambda step, total, learner: None,
    data: Path | None = None,
    *,
    on_features: OnRows = lambda done, total: None,
    on_replaced: OnReplaced = lambda batches: None,
    resume: bool = False,
    checkpoint_every: int = CHECKPOINT_EVERY,
    patience: float = 0.0,
) -> dict[str, Any]:
    """Run `config` on the data sets in `data`, write its files to `folder`; return the content of result.json.

    A checkpoint is written to `folder`/checkpoints every `checkpoint_every` batches (0: never), and before an error of
    the stream or a Ctrl-C is raised. With `resume`, an interrupted run continues from its last checkpoint, with the
    same outcome, and a finished run is not repeated; other data are an error. `on_features` is called while features of
    the rows are computed, if the settings name a backbone. `on_replaced` is called before the checkpoints of an
    interrupted run are deleted, without `resume`. Failing to write a checkpoint is a warning; failing to write events
    ends the run. A folder that another process writes to is waited for up to `patience` seconds.
    """
    check(config)
    if resume:
        check_resumable(config.method)
    with hold(folder, RUN, patience), deterministic_algorithms(config.deterministic):
        session = RunSession(config, folder, data, checkpoint_every, on_features)
        if resume:
            if (finished := read_finished(folder, config)) is not None:
                session.check_data(finished.get("data", session.data))  # results of 0.1.0 do not have it
                return finished
            session.resume()
        else:
            if replaced := checkpointed_batches(session.checkpoints.folder):
                on_replaced(replaced)
            session.delete_checkpoints()  # checkpoints of another run
        # Only now: if building fails, an older run's files are kept.
        with RunRecorder(folder, config, session.files) as recorder:
            session.learn(recorder, on_step)
            speed = round(session.rows / session.seconds, 1)
            result = session.result()
            result |= {"training_seconds": round(session.training_seconds, 3), "samples_per_second": speed}
            result |= {"protocol": protocol(config) | session.provenance}
            recorder.result(result)
        session.delete_checkpoints()  # nothing is left to resume
    return result


class RunSession:
    """State of a run: the learner, its stream and its record."""

    feed: Feed
    """The stream's batches; set when learning starts."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        data: Path | None,
        checkpoint_every: int,
        on_features: OnRows = lambda done, total: None,
    ) -> None:
        self.config = config
        self.folder = folder
        keys = Keys(config.seed)
        rows = build_scenario(config, keys, data)
        self.data = fingerprint(rows)
        self.scenario = with_features(rows, config, data, on_features)
        self.total = self.scenario.batches(config.batch_size, config.epochs)
        self.events: list[Event] = []
        self.learner = build_learner(config, self.scenario, keys, self.events.append, lambda: self.feed.current_task)
        self.ledger = Ledger()
        self.tracker = _build_tracker(config, self.scenario) if config.track else None
        self.checkpoints = Checkpoints(folder / CHECKPOINTS)
        self.checkpoint_every = checkpoint_every
        self.skipped: list[int] = []
        """Positions in the stream of the skipped bad batches."""
        self.files: dict[str, int] | None = None
        """Lengths in bytes of the run's files at the last checkpoint; None for a new run."""
        self.seconds, self.rows = 0.0, 0
        """Time spent learning so far, and number of rows learned."""
        self.clock = time.process_time if config.device == "cpu" else time.perf_counter
        """Seconds of this process on a CPU, where other processes do not count; elapsed seconds on a GPU."""
        self.training_seconds = 0.0
        """Time spent learning by that clock, with the end of the stream and without tests on the way."""
        self.commits = [commit()]
        """Commits of the code, now and before interruptions; read at the start, since the files may change later."""

    def resume(self) -> None:
        """Restore the last checkpoint; do nothing if there is none."""
        config, learner = self.config, self.learner
        if not has_checkpoint(self.checkpoints.folder):
            return
        snapshot, extra = read_checkpoint(self.checkpoints.folder)
        with reading(str(self.checkpoints.folder)):
            earlier = RunConfig.from_json(extra["config"])
        if earlier != config:
            raise settings_mismatch(self.folder, earlier.as_json(), config)
        self.check_data(extra.get("data"))
        with reading(str(self.checkpoints.folder)):
            learner.restore(snapshot)
            self.skipped, self.files = extra["skipped"], extra["files"]
            self.seconds, self.rows = extra["seconds"], extra["rows"]
            self.training_seconds = extra["training_seconds"]
            self.commits = [*(c for c in extra["commits"] if c != self.commits[-1]), self.commits[-1]]
            schedule = self.scenario.schedule(config.batch_size, config.epochs, Keys(config.seed))
            draws = enumerate(islice(schedule, learner.steps + len(self.skipped)))
            self.ledger = Ledger.from_json(extra["ledger"], [task for n, (task, _) in draws if n not in self.skipped])
            if self.tracker:
                self.tracker.load_json(extra["tracked"])

    def check_data(self, expected: object) -> None:
        """Raise an error if the data are not those of the run in the folder, given by their fingerprint."""
        if expected != self.data:
            message = f"resume: got other data than those of the run in {self.folder}, expected the same (--data)"
            raise ValueError(f"{message}; {FROM_THE_BEGINNING}")

    def delete_checkpoints(self) -> None:
        """Delete the checkpoints."""
        forget_checkpoints(self.checkpoints.folder)

    @property
    def provenance(self) -> dict[str, Any]:
        """The commits of the code that ran."""
        *earlier, last = self.commits
        return {"commit": last} | ({"earlier_commits": earlier} if earlier else {})

    def learn(self, recorder: RunRecorder, on_step: OnStep) -> None:
        """Learn the stream to its end."""
        feed = self.feed = self._feed()
        learner, ledger = self.learner, self.ledger
        started = time.perf_counter() - self.seconds
        with interrupt_between_batches(feed):
            while not (ledger.runaway or feed.ended or feed.position >= self.total):
                # The learner receives only the batches; the feed keeps their tasks for the ledger.
                steps, begun = self._learn_segment(feed, recorder), self.clock()
                for step in steps:
                    origin = feed.origins.popleft()
                    ledger.observe(origin.task, step, self.events)
                    recorder.step(origin.task, step, [*origin.skipped, *self.events])
                    on_step(step, self.total, learner)
                    self.events.clear()
                    self.rows += origin.rows
                    if ledger.runaway:
                        break
                recorder.events(feed.take_pending())
                self.seconds = time.perf_counter() - started
                self.training_seconds += self.clock() - begun
                if not ledger.runaway:
                    self._test_and_save(feed, recorder)
        self._check_end(feed)
        started = self.clock()
        learner.end_stream()
        self.training_seconds += self.clock() - started

    def result(self) -> dict[str, Any]:
        """Test the learner; return the metrics."""
        tracked = {"tracked": self.tracker.as_json()} if self.tracker else {}
        figures = _figures(self.config, self.scenario, self.learner, self.ledger)
        return figures | {"data": self.data, "batches_skipped": len(self.skipped)} | tracked

    def _feed(self) -> Feed:
        config, scenario, learned = self.config, self.scenario, self.learner.steps
        start = learned + len(self.skipped)
        stream = scenario.stream(config.batch_size, config.epochs, Keys(config.seed), start=start)
        return Feed(stream, scenario.shape, scenario.classes, config.on_bad_batch, learned, self.skipped)

    def _learn_segment(self, feed: Feed, recorder: RunRecorder) -> Iterator[Step]:
        """Learn up to the next pause: the next checkpoint, or the next test of the tracker."""
        learner, every = self.learner, self.checkpoint_every
        length = every - learner.steps % every if every else self.total
        if self.tracker is None:
            return self._learn_all(islice(feed, length))
        length = min(length, self.tracker.until_next_test(feed.position))
        return self._learn_all(self._predict_first(self.tracker, feed, length, recorder))

    def _learn_all(self, batches: Iterator[Batch]) -> Iterator[Step]:
        """Learn batches; only a method that declares the need for them is given task boundaries."""
        if not METHODS[self.config.method].needs.boundaries:
            return self.learner.learn_all(batches)
        return self._learn_with_boundaries(cast(GivenBoundaries, self.learner), batches)

    def _learn_with_boundaries(self, learner: GivenBoundaries, batches: Iterator[Batch]) -> Iterator[Step]:
        """Learn batch by batch, and call `boundary()` before each whose task is not that of the previous one."""
        for batch in batches:
            past = self.ledger.task_of_step
            if past and past[-1] != self.feed.current_task:
                learner.boundary()
            yield from learner.learn_all([batch])

    def _predict_first(self, tracker: Tracker, feed: Feed, length: int, recorder: RunRecorder) -> Iterator[Batch]:
        """Return `length` batches; predict the first one before it is learned, if that is due."""
        due = tracker.is_due(feed.position)
        first = list(islice(feed, 1))
        if first and due:
            tracker.predict(self.learner.steps, first[0], self.learner.answers(), self.scenario.classes)
            recorder.accuracy(*tracker.prequential[-1])
        return chain(first, islice(feed, length - 1))

    def _test_and_save(self, feed: Feed, recorder: RunRecorder) -> None:
        """Test and write a checkpoint, if due, between two segments."""
        learner = self.learner
        if self.tracker:
            answers = build_answers(self.config, learner, len(self.scenario.tasks))
            self.tracker.test(feed.position, answers, self.scenario.tasks, self.scenario.classes)
        if not self.checkpoint_every:
            return
        ends = feed.position >= self.total or feed.error or feed.interrupt  # the final tests take long, too
        if ends or learner.steps % self.checkpoint_every == 0:
            self._write_checkpoint(feed, recorder)

    def _write_checkpoint(self, feed: Feed, recorder: RunRecorder) -> None:
        """Write a checkpoint. If that fails, e.g. on a full disk, warn, keep the previous one and continue."""
        extra = {
            "config": self.config.as_json(),
            "data": self.data,
            "ledger": self.ledger.as_json(),
            "skipped": self.skipped,
            "files": recorder.position(),
            "commits": self.commits,
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "rows": self.rows,
            "tracked": self.tracker.as_json() if self.tracker else None,
        }
        try:
            self.checkpoints.write(self.learner.snapshot(), extra)
        except OSError as error:
            message = f"checkpoint at batch {feed.position}: {error.filename}: {error.strerror}"
            warnings.warn(f"{message}; the run continues, and the previous checkpoint is kept", stacklevel=5)

    def _check_end(self, feed: Feed) -> None:
        """Raise the source's deferred error, now that the state before it is saved."""
        if error := feed.error or feed.interrupt:
            raise error
        if not self.learner.steps:
            raise ValueError(f"stream: got {len(self.skipped)} bad batches, expected at least one that is good")
        if feed.position < self.total and not self.ledger.runaway:
            warnings.warn(f"the stream ended after {feed.position} of {self.total} batches", stacklevel=4)


@contextmanager
def interrupt_between_batches(feed: Feed) -> Iterator[None]:
    """Defer a Ctrl-C in the block to the next batch, so that a checkpoint can be written; a second one is immediate.

    This applies to SIGINT and SIGTERM where they raise a KeyboardInterrupt; other handlers are not replaced.
    """
    default_handler = signal.default_int_handler
    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is default_handler]
    if threading.current_thread() is not threading.main_thread():
        handled = []

    def defer(number: int, frame: object) -> None:
        feed.interrupt = KeyboardInterrupt()
        signal.signal(number, default_handler)

    for number in handled:
        signal.signal(number, defer)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, default_handler)


def _build_tracker(config: RunConfig, scenario: Scenario) -> Tracker:
    ends = scenario.visit_ends(config.batch_size, config.epochs)
    return Tracker(ends[-1], ends, config.routing, config.test_batch_size)


def _figures(config: RunConfig, scenario: Scenario, learner: OnlineLearner, ledger: Ledger) -> dict[str, Any]:
    switches, owners = ledger.switches(), ledger.owners(len(scenario.tasks))
    answers = build_answers(config, learner, len(scenario.tasks))
    routings: tuple[Routing, ...] = ("sample", "batch")
    figures = {
        routing: evaluate(answers, scenario.tasks, owners, scenario.classes, routing, config.test_batch_size)
        for routing in routings
    }
    x = scenario.tasks[0].test.batch(torch.arange(min(len(scenario.tasks[0].test), ROWS))).x
    return {
        "cost": costs(answers[0], learner.costs(), figures, x, scenario.classes, config.test_batch_size),
        **{f"accuracy_{r}": round(f.accuracy, 3) for r, f in figures.items()},
        **{f"gate_accuracy_{r}": round(f.gate_accuracy, 3) for r, f in figures.items()},
        "calibration_error_sample": round(figures["sample"].calibration_error, 3),
        "experts": len(learner.experts),
        "experts_unpromoted": len(learner.newcomers),
        "rows_kept": learner.rows_kept,
        "parameters": learner.parameters,
        **{f"experts_queried_{r}": round(f.experts_queried, 3) for r, f in figures.items()},
        "switches_found": switches.found,
        "switches_missed": switches.missed,
        "switches_false": switches.false,
        "switch_delay": switches.delay,
        "promotion_delay": ledger.promotion_delay,
        "score_evaluations_per_batch": {k: round(v / learner.steps, 3) for k, v in learner.evaluations.items()},
        "dnf": ledger.runaway,
        "batches": learner.steps,
        "tasks": [task.name for task in scenario.tasks],
        "visits": ledger.visits(),
        "created": [[step, expert] for step, expert in ledger.created],
        "tree": {"nodes": learner.tree.as_json(), "reached": figures["batch"].reached.round(2).tolist()},
        "domains": [task.domain for task in scenario.tasks],
        "routed": {r: f.routed.round(2).tolist() for r, f in figures.items()},
    }


def protocol(config: RunConfig) -> dict[str, Any]:
    """Return the settings and the environment of a run."""
    chosen = {name: getattr(config, name) for name in PROTOCOL_SETTINGS}
    chosen |= {"score": config.score.name, "device": config.device, "precision": config.precision}
    return chosen | {"changed": changes(config)} | environment()
