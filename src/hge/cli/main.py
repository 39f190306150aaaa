"""The `hge` command: commands that are imported when called, and error handling."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

from hge import __version__
from hge.cli.starting import starting

with starting():
    import typer
    from typer.core import TyperGroup
    from typer.main import get_group


@dataclass(frozen=True)
class LazyCommand:
    """A command, or a group of commands, in a module of its own."""

    module: str
    name: str
    """Name of a function or a `typer.Typer` in the module."""
    summary: str
    """First line of its help, shown in the list of commands without importing it."""

    def load(self, called: str) -> Any:
        """Import the command and return it as typer runs it."""
        holder = typer.Typer()
        with starting():
            found = getattr(import_module(f"hge.cli.{self.module}"), self.name)
            if isinstance(found, typer.Typer):
                holder.add_typer(found, name=called)
            else:
                holder.command(called)(found)
            return get_group(holder).commands[called]  # typer imports pydantic here


COMMANDS = {
    "gates": LazyCommand(
        "leaderboard",
        "gates_command",
        "Compare all scores on the same experts: how often each selects the right expert, and at what cost.",
    ),
    "arena": LazyCommand(
        "arena",
        "arena_command",
        "Compare methods on one stream: accuracy, forgetting, memory, cost, and what each is told.",
    ),
    "reproduce": LazyCommand(
        "reproduce",
        "reproduce_command",
        "Run the experiments of a table or figure; finished runs are skipped, interrupted ones are resumed.",
    ),
    "table": LazyCommand(
        "table",
        "table_command",
        "Show the paper's numbers beside ours: mean ± standard deviation over seeds, a verdict, and the protocol.",
    ),
    "demo": LazyCommand(
        "run",
        "demo_command",
        "Learn Split Digits from a stream without task labels, in seconds, and write a report of the run.",
    ),
    "run": LazyCommand(
        "run",
        "run_command",
        "Run a scenario and write config.json, events.jsonl, trace.csv, result.json and report.html.",
    ),
    "evaluate": LazyCommand(
        "evaluate",
        "evaluate_command",
        "Compare Gated Experts with other methods on your stream, and write result.json and report.html.",
    ),
    "predict": LazyCommand(
        "predict",
        "predict_command",
        "Predict the rows of a file, or a folder of images, with a saved model.",
    ),
    "serve": LazyCommand(
        "serve",
        "serve_command",
        "Serve a model over HTTP: it predicts, learns on, and survives being killed.",
    ),
    "watch": LazyCommand(
        "watch",
        "watch_command",
        "Show a run's folder, finished or not, or a served model on a page that grows as the stream goes.",
    ),
    "scenarios": LazyCommand(
        "scenarios",
        "scenarios_command",
        "List the scenarios, what they consist of, and whether their data are available.",
    ),
    "trees": LazyCommand(
        "trees",
        "trees_command",
        "Show the trees of runs: as text here, side by side on a page, and as tree-NAME.dot for Graphviz.",
    ),
    "report": LazyCommand(
        "report",
        "report_command",
        "Rewrite report.html: for a run from its files, or one page for all results below a folder.",
    ),
    "data": LazyCommand("data", "app", "Find, verify, download and import the data sets."),
    "bench": LazyCommand("bench", "app", "Measure speed and memory, in ratios within one run."),
}


class LazyGroup(TyperGroup):
    """A group whose commands are placeholders until one is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is called, and import it."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and COMMANDS[name].load(name), rest


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hge {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    help="Continual learning from a stream without task labels (Gated Experts).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _placeholder() -> None:
    pass


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.summary)(_placeholder)


def main() -> None:
    """Run the command; an invalid call prints one line on standard error and exits with code 2."""
    # Newer versions of typer bundle their own click, so the exception is reached through a class that typer exports.
    click_exception: type[Any] = typer.BadParameter.__mro__[2]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop acts like Ctrl-C: nothing is lost
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except click_exception as error:
        message = error.format_message()
        if not message:  # no arguments: the help was shown
            sys.exit(2)
    except (ValueError, OverflowError) as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    from hge.cli.console import printable  # imports rich, which takes time

    print(f"hge: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(2)
