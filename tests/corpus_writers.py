"""Writers of tiny corpora in the layouts of the real ones, with made-up text."""

import csv
import functools
import gzip
import http.server
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Sequence
from contextlib import contextmanager

from omegaconf import DictConfig, OmegaConf

from headwise.config.data import CleaningConfig, ImageDataConfig
from headwise.config.register import SCHEMAS, config_dir, group_choices
from headwise.data.sources.tables import language_columns, row_pairs, table_rows
from headwise.tasks.data import open_corpus

Pairs = Sequence[tuple[str, str]]


def data_yamls(name):
    """`conf/data/<name>.yaml` after the yamls that it extends."""
    node = OmegaConf.load(config_dir() / "data" / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    names = [entry for entry in node.defaults if isinstance(entry, str) and entry[0] not in "_/"]
    return [*(extended for name in names for extended in data_yamls(name)), node]


def parallel_corpora():
    """Choices of `data=` with sentence pairs."""
    schema = "/schema/parallel@_here_"
    return [name for name in group_choices("data") if schema in data_yamls(name)[0].defaults]


def data_config(name, **changes):
    """`conf/data/<name>.yaml` as Hydra would compose it, with some keys changed."""
    nodes = data_yamls(name)
    defaults = map(str, nodes[0].defaults)
    (schema,) = (entry for entry in defaults if entry.startswith("/schema/"))
    for node in nodes:
        node.pop("defaults")
    kind = SCHEMAS[schema.removeprefix("/schema/").partition("@")[0]]
    content = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(kind), *nodes, changes))
    if "cleaning" in content:
        content["cleaning"] = CleaningConfig(**content["cleaning"])
    return kind(**content)


def open_named_corpus(folder, name, labelled=False, **changes):
    """Open the corpus of `conf/data/<name>.yaml`, with its cache in `folder`."""
    return open_config(data_config(name, **changes), folder / "cache", labelled)


def open_config(config, cache, labelled=False):
    """The corpus of a config, with its test sets located; of images, `labelled` or not."""
    is_image = isinstance(config, ImageDataConfig)
    corpus = open_corpus(config, cache, **({"labelled": labelled} if is_image else {}))
    assert corpus.test_sets is not None
    return corpus


def table_pairs(paths, source, target):
    """The sentence pairs in tables."""
    select = functools.partial(language_columns, (source, target))
    return row_pairs(table_rows(paths, select), source, target)


def sentences(source, target, n, tag=""):
    """`n` different pairs of a few words."""
    words = [f"eins{i} zwei drei {tag}".strip() for i in range(n)]
    return [(f"{source} {text}.", f"{target} {text}.") for text in words]


def encode_lines(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def write_text(folder, stem, languages, pairs, gz):
    for side, language in enumerate(languages):
        data = encode_lines([pair[side] for pair in pairs])
        name = f"{stem}.{language}"
        if gz:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_zip(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def iwslt_tags(lines):
    head = [
        "<url>http://www.ted.com/talks/somebody</url>",
        "<title>A title that is no sentence</title>",
    ]
    return encode_lines([*head, *(f" {escaped(line)} " for line in lines), "<reviewer></reviewer>"])


def iwslt_xml(lines, language, talk="7"):
    segments = [f'<seg id="{i}"> {escaped(line)} </seg>' for i, line in enumerate(lines, 1)]
    head = f'<refset srclang="german" trglang="{language}"><doc docid="{talk}" genre="lectures">'
    title = "<title>A title that is no sentence</title>"
    return encode_lines(["<mteval>", head, title, *segments, "</doc></refset></mteval>"])


def wmt_sgm(lines, per_document=2, reverse=False):
    """Text in SGM; segment ids restart in each document, `reverse` reverses the documents."""
    documents = []
    for first in range(0, len(lines), per_document):
        body = [
            f'<seg id="{i}">{escaped(line)}</seg>'
            for i, line in enumerate(lines[first : first + per_document], 1)
        ]
        head = f'<DOC sysid="ref" docid="paper.{first}" genre="news" origlang="de">'
        documents.append([head, "<p>", *body, "</p>", "</DOC>"])
    if reverse:
        documents.reverse()
    inner = [line for document in documents for line in document]
    return encode_lines(['<srcset setid="newstest" srclang="any">', *inner, "</srcset>"])


def write_parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def write_table(path, header, cells):
    """A table in the format of its name: tsv, csv, jsonl or parquet, compressed or not."""
    kind = path.name.split(".")[1]
    records = [dict(zip(header, row, strict=True)) for row in cells]
    if kind == "parquet":
        return write_parquet(path, records)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([header, *cells])
    data = {
        "tsv": encode_lines(["\t".join(map(str, row)) for row in (header, *cells)]),
        "csv": table.getvalue().encode(),
        "jsonl": encode_lines(list(map(json.dumps, records))),
    }[kind]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return None


def translations(languages, pairs):
    return [{"translation": dict(zip(languages, pair, strict=True))} for pair in pairs]


@contextmanager
def serve_folder(folder):
    """Serve the files of `folder` on this machine; yields the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
