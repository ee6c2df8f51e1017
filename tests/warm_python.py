"""Processes with the libraries already imported, forked by the server of `multiprocessing`.

Starting Python and importing torch take longer than a short training. `PROCESSES` starts functions
in such processes; headwise is imported only there. `warm_python` provides the `python` and
`headwise` of a shell: programs on its PATH (`client`) that send their arguments, folder,
environment and streams and wait. Their training is short.
"""

import functools
import json
import multiprocessing
import os
import runpy
import socket
import socketserver
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import hydra._internal.hydra

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["hydra._internal.hydra", "matplotlib.pyplot", "pooch", "pytest", "sacrebleu", "sacremoses",
     "seaborn", "sentencepiece", "torch._dynamo", "torch.utils.data"]
)  # fmt: skip

# Added to every command that trains: layers and heads stay as they are, widths, updates and text
# become smaller.
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
SHORT_TEXT = ("data.n_train=400", "data.n_valid=20", "data.n_test=20", "tokenizer.vocab_size=350")
SHORT_DATA = {  # experiment that trains on drawn texts -> fewer of them
    "experiment=demo_text": SHORT_TEXT,
    "experiment=demo_masked_lm": SHORT_TEXT,
    "experiment=demo_classification": (
        SHORT_BUILTIN.replace("Corpus", "Tables"), "tokenizer.vocab_size=350"
    ),
}  # fmt: skip
OTHER_DATA = {
    *("data=text", "data=builtin_text", "data=images", "data=music"),
    *("data=majority", "data=induction", "data=verses"),
    *("experiment=demo_text", "experiment=demo_masked_lm"),
    *("data=labelled", "data=image_folder", "experiment=demo_classification"),
}
WITHOUT_TRAINING = {"dry_run=true", "--cfg", "--help"}

CLIENT = """#!{python} -ISE
import json, os, socket, sys
request = {{
    "name": os.path.basename(sys.argv[0]),
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "source": {source!r},
}}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    socket.send_fds(connection, [b"."], [0, 1, 2])
    connection.sendall(json.dumps(request).encode() + b"\\n")
    code = connection.makefile().read()
sys.exit(int(code or 1))
"""


def client(address, source):
    """Source of a program that acts as `python` or `headwise`, according to its file name.

    Args:
        address: of a `warm_python`.
        source: folder from which headwise is imported.
    """
    return CLIENT.format(python=sys.executable, address=address, source=str(source))


@contextmanager
def warm_python(address):
    """Run the commands that clients send.

    Args:
        address: path of a socket, of at most about 100 bytes.
    """
    with socketserver.ThreadingUnixStreamServer(address, _Command) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


class _Command(socketserver.BaseRequestHandler):
    def handle(self):
        process = PROCESSES.Process(target=_run, args=(self.request,))
        process.start()
        process.join()
        self.request.sendall(str(process.exitcode).encode())


def shortened(name, arguments):
    """The arguments of `python` or `headwise`, with `SHORT` added where they train.

    If there are runs, the recipes of a study get it too, so that short runs fill its cells.
    """
    argv = list(arguments)
    command = os.path.basename(argv[0]) if argv else ""
    command = command if name == "headwise" else command.removesuffix(".py")
    if WITHOUT_TRAINING.intersection(argv):
        return argv
    if command in ("train", "prepare"):
        has_pairs = OTHER_DATA.isdisjoint(argv)
        names = [a for a in argv if a.startswith("data=")]
        builtin = [SHORT_BUILTIN] if has_pairs and names in ([], ["data=builtin"]) else []
        of_pairs = () if has_pairs else ("data.", "tokenizer.", "decode.")
        cosine = ["scheduler.warmup_updates=1"] if "data=induction" in argv else []
        drawn = next((SHORT_DATA[a] for a in argv if a in SHORT_DATA), ())
        return [*argv, *(a for a in SHORT if not a.startswith(of_pairs)), *builtin, *cosine, *drawn]
    if command in ("classifier", "decoder"):  # scripts of a page: data, steps, attention, seed
        return [*argv[:2], "2", *argv[3:]]
    has_runs = any(Path("outputs").glob("*/*/config.yaml"))
    is_table = command == "table" and any(a.startswith("study=") for a in argv)
    if is_table and has_runs and not any("results/" in a for a in argv):
        recipes = ",".join(f"'{override}'" for override in (*SHORT, SHORT_BUILTIN))
        return [*argv, f"overrides=[{recipes}]"]
    return argv


def _run(connection):
    """Run one command with the streams it was sent with."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    request = json.loads(connection.makefile().readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    # those of the server may be files, which have positions
    sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, "utf-8", closefd=False) for n in (1, 2))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    argv = shortened(request["name"], request["arguments"])
    if request["name"] == "headwise":
        argv = ["-c", "from headwise.cli import main; main()", *argv]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths.append(request["source"])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for child processes
    script_folders = {"-c": "", "-m": os.getcwd()}
    sys.path[0:1] = [script_folders.get(argv[0], os.path.dirname(os.path.abspath(argv[0]))), *paths]
    # Hydra composes once more, for hydra.mode alone, which no page sets.
    hydra._internal.hydra.Hydra.get_mode = lambda *_, **__: None
    if "dry_run=true" in argv:
        import headwise.tasks.dry_run

        headwise.tasks.dry_run.SECONDS = headwise.tasks.dry_run.PART_SECONDS = 0.1
        headwise.tasks.dry_run.N_OUTPUTS = 4
    elif "-m" in argv[1:]:
        import headwise.commands.training_run

        headwise.commands.training_run.draw = lambda folder, tracker: None  # seconds a job
    elif {"train", "train.py"}.intersection(argv) and "experiment=demo" not in argv:
        import headwise.commands.outcome

        headwise.commands.outcome.FORMATS = ("png",)  # figures are half of its time
    elif "figures" in argv[:3] and any(a.startswith("run=") for a in argv):
        from headwise.commands import figures as command
        from headwise.studies import figures

        figures.save = functools.partial(figures.save, formats=["svg"])  # of several runs all
        command.save = figures.save
    if argv[0] == "-c":
        sys.argv = [request["name"], *argv[2:]]
        exec(argv[1], {"__name__": "__main__"})
    elif argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
