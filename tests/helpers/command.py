"""The `hge` command, called in the process of the test: a new process takes seconds to start."""

from __future__ import annotations

import io
import os
import signal
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from hge.cli.main import main


def hge(*arguments: str, cwd: Path, columns: int = 120) -> CompletedProcess[str]:
    """Run the command as `python -m hge` does; signal handlers, folder and environment are restored."""
    out, err, handler = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGTERM)
    here = patch("sys.argv", ["hge", *arguments]), patch.dict(os.environ, COLUMNS=str(columns))
    try:
        with here[0], here[1], chdir(cwd), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        return CompletedProcess(arguments, int(end.code or 0), out.getvalue(), err.getvalue())
    finally:
        signal.signal(signal.SIGTERM, handler)
    raise AssertionError("the command must exit with a code")
