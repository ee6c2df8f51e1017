"""Processes that start with the libraries imported, forked by the server of `multiprocessing`.

Starting Python and importing torch costs more than all that a short training does. `PROCESSES`
starts functions in such processes; headwise is imported only there. `warm_python` makes of them the
`python` and `headwise` of a shell: programs on its PATH (`client`) that hand their arguments,
folder, environment and streams over and wait. Their training is short.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["hydra", "matplotlib.pyplot", "pytest", "sacrebleu", "sacremoses", "seaborn", "sentencepiece",
     "torch._dynamo", "torch.utils.data"]
)  # fmt: skip

# Added to every training but those that only tell what they would do: layers and heads stay as the
# command chose them, widths, updates and text shrink.
SHORT = (
    "model.d_model=32", "model.d_ff=32", "data.max_train_pairs=400", "tokenizer.vocab_size=200",
    "trainer.max_updates=4", "trainer.max_tokens=512", "trainer.log_every=1",
    "trainer.validate_every=2", "trainer.save_every=1", "trainer.valid_sentences=4",
    "trainer.head_sentences=4", "trainer.n_workers=1", "trainer.precision=fp32",
    "decode.beam=2", "decode.max_length_ratio=0.5", "decode.max_length_extra=3",
)  # fmt: skip
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


def client(address: str, source: Path) -> str:
    """The program that is `python` or `headwise` by its file's name.

    Args:
        address: of a `warm_python`.
        source: the folder from which headwise is imported.
    """
    return CLIENT.format(python=sys.executable, address=address, source=str(source))


@contextmanager
def warm_python(address: str) -> Iterator[None]:
    """Run what clients send.

    Args:
        address: path of a socket, which is limited to about 100 bytes.
    """
    with socketserver.ThreadingUnixStreamServer(address, _Command) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


class _Command(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        process = PROCESSES.Process(target=_run, args=(self.request,))
        process.start()
        process.join()
        self.request.sendall(str(process.exitcode).encode())


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
        of_pairs = () if {"data=text", "data=parity"}.isdisjoint(given) else ("data.", "tokenizer.")
        short = [a for a in SHORT if not a.startswith(of_pairs)]
        return [*given, *short, *([SHORT_BUILTIN] if builtin else [])]
    has_runs = any(Path("outputs").glob("*/*/config.yaml"))
    if command == "report" and any(a.startswith("paper=") for a in given) and has_runs:
        recipes = ",".join(f"'{override}'" for override in (*SHORT, SHORT_BUILTIN))
        return [*given, f"overrides=[{recipes}]"]
    return given


def _run(line: socket.socket) -> None:
    """Run one command with the streams that come with it."""
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    order = json.loads(line.makefile().readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
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
