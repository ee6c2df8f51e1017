"""A Python with the libraries imported, which forks for every command and makes training short.

Starting Python and importing torch costs more than all that the commands of the guide do. The
commands themselves are programs on the PATH of a shell (`client`) that hand their arguments,
folder, environment and streams to this process and wait; headwise is imported only then, from the
source that the client names.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

# Added to every training but those that only tell what they would do: layers and heads stay as the
# command chose them, widths, updates and text shrink.
SHORT = (
    "model.d_model=32",
    "model.d_ff=32",
    "data.max_train_pairs=400",
    "tokenizer.vocab_size=200",
    "trainer.max_updates=4",
    "trainer.max_tokens=512",
    "trainer.log_every=1",
    "trainer.validate_every=2",
    "trainer.save_every=1",
    "trainer.valid_sentences=4",
    "trainer.head_sentences=4",
    "trainer.n_workers=1",
    "trainer.precision=fp32",
    "decode.beam=2",
    "decode.max_length_ratio=0.5",
    "decode.max_length_extra=3",
)
SHORT_BUILTIN = (
    "data.origins=[{_target_: headwise.data.builtin.BuiltinCorpus, "
    "n_train: 400, n_valid: 20, n_test: 20}]"
)
ONLY_TELL = {"dry_run=true", "--cfg", "--help"}

CLIENT = """#!{python} -ISE
import json, os, socket, sys
order = {{
    "name": os.path.basename(sys.argv[0]),
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "source": {source!r},
}}
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    socket.send_fds(line, [b"."], [0, 1, 2])
    line.sendall(json.dumps(order).encode() + b"\\n")
    code = line.makefile().read()
sys.exit(int(code or 1))
"""


class WarmPython:
    """The process, as long as the `with` lasts.

    Args:
        folder: for its socket, whose path is limited to about 100 bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._address = folder / "s"

    def client(self, source: Path) -> str:
        """The program that is `python` or `headwise` by its file's name.

        Args:
            source: the folder from which headwise is imported.
        """
        return CLIENT.format(python=sys.executable, address=str(self._address), source=str(source))

    def __enter__(self) -> WarmPython:
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(self._address)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.terminate()
        self._server.wait()


def shortened(name: str, arguments: Sequence[str]) -> list[str]:
    """The arguments of `python` or `headwise`, with `SHORT` added where they train.

    So that short runs fill the cells of a paper's table, its recipes get the same; as long as
    there are no runs, the table is the real one.
    """
    given = list(arguments)
    command = os.path.basename(given[0]) if given else ""
    command = command if name == "headwise" else command.removesuffix(".py")
    if ONLY_TELL.intersection(given):
        return given
    if command in ("train", "prepare"):
        builtin = not any(a.startswith("data=") and a != "data=builtin" for a in given)
        return [*given, *SHORT, *([SHORT_BUILTIN] if builtin else [])]
    if command == "report" and any(a.startswith("paper=") for a in given) and _has_runs():
        recipes = ",".join(f"'{override}'" for override in (*SHORT, SHORT_BUILTIN))
        return [*given, f"overrides=[{recipes}]"]
    return given


def _has_runs() -> bool:
    return any(Path("outputs").glob("*/*/config.yaml"))


def serve(address: str) -> None:
    """Fork for every order, without end."""
    import hydra  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import pytest  # noqa: F401
    import sacrebleu  # noqa: F401
    import sacremoses  # noqa: F401
    import seaborn  # noqa: F401
    import sentencepiece  # noqa: F401
    import torch._dynamo
    import torch.utils.data

    torch.set_num_threads(1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        line, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _answer(line)
        line.close()


def _answer(line: socket.socket) -> None:
    """Do one order with the streams that came with it, tell its exit code, and end."""
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    order = json.loads(line.makefile().readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    code: Any = 0
    try:
        _run(order)
    except SystemExit as left:
        code = left.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # noqa: BLE001 - told, as Python itself ends
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    line.sendall(str(int(code)).encode())
    os._exit(0)


def _run(order: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    given = shortened(order["name"], order["arguments"])
    if order["name"] == "headwise":
        given = ["-c", "from headwise.cli import main; main()", *given]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths.append(order["source"])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for processes that this one starts
    own = {"-c": "", "-m": os.getcwd()}
    sys.path[0:1] = [own.get(given[0], os.path.dirname(os.path.abspath(given[0]))), *paths]
    if "-m" in given[1:]:
        import headwise.commands.train

        headwise.commands.train.draw = lambda folder, tracker: None  # seconds a job
    if given[0] == "-c":
        sys.argv = [order["name"], *given[2:]]
        exec(given[1], {"__name__": "__main__"})
    elif given[0] == "-m":
        sys.argv = given[1:]
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = given
        runpy.run_path(given[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
