"""The wheel and the source distribution: their files, and use away from the checkout."""

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from headwise import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
MEGABYTE = 1_000_000
NAME = f"headwise-{__version__}"
# Two updates of a small model on a corpus that needs no files.
TRAIN = (
    "data=builtin", "data.max_train_pairs=300", "tokenizer.vocab_size=100", "model=tiny",
    "model.d_model=32", "model.d_ff=32", "trainer=debug", "trainer.progress=false",
    "tracker=none", "decode.beam=2", "decode.max_length_extra=3", "experiment_name=release",
)  # fmt: skip
USE = """
import pathlib, headwise, headwise.entmax
from headwise.config.register import config_dir
from headwise.ops.cpp.build import unavailable_reason
(config,) = pathlib.Path("outputs/release").glob("*/config.yaml")
assert isinstance(headwise.load(config.parent).translate(["Der Hund schläft."])[0].text, str)
print(unavailable_reason(), headwise.__file__, headwise.entmax.__file__, config_dir(), sep="\\n")
"""
# Only headwise is read: types of torch would take half a minute.
MYPY = """
[mypy]
follow_imports = skip
ignore_missing_imports = false
[mypy-headwise,headwise.entmax.*]
follow_imports = normal
"""
TYPED = "import headwise\nreveal_type(headwise.__version__); headwise.load(1.5)\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution, and the wheel made from it, by the ends of their names."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return {file.suffix: file for file in folder.iterdir()}


class Environment:
    """A new virtual environment in which the packages of the tests are importable too.

    A folder named in a .pth file is searched last, and .pth files in it are not read: an editable
    installation of headwise is not found.
    """

    def __init__(self, folder, distribution):
        call(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
        self.python, self.folder = str(folder / "venv/bin/python"), folder
        sites = [path for path in sys.path if path.endswith("-packages")]
        (self.site / "tests.pth").write_text("\n".join(sites), encoding="utf-8")
        pip = ("-m", "pip", "--python", self.python, "install", "--no-index")
        call(
            sys.executable, *pip, "--no-build-isolation", "-c", str(LOCK), str(distribution),
            cwd=folder,
        )  # fmt: skip

    @property
    def site(self):
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.folder / "venv")}))

    def call(self, program, *arguments):
        """Output of a program of the environment, run in its folder."""
        return call(f"{self.folder}/venv/bin/{program}", *arguments, cwd=self.folder)


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("away")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWISE_CACHE", str(folder / "cache"))
        patch.delenv("PYTHONPATH", raising=False)
        yield Environment(folder, built[".whl"])


def call(*command, cwd=ROOT):
    """Output of a command that must succeed; the error names the streams."""
    completed = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{command}\n{completed.stdout}\n{completed.stderr}"
    return completed.stdout


def test_distributions_have_what_belongs_to_them(built):
    assert built[".whl"].name == f"{NAME}-py3-none-any.whl"
    assert built[".gz"].name == f"{NAME}.tar.gz"
    assert built[".whl"].stat().st_size < MEGABYTE
    assert built[".gz"].stat().st_size < 3 * MEGABYTE
    in_wheel = set(zipfile.ZipFile(built[".whl"]).namelist())
    tops = {name.split("/")[0] for name in in_wheel}
    assert tops == {"headwise", "hydra_plugins", f"{NAME}.dist-info"}
    sources = {
        path.relative_to(ROOT / "src").as_posix(): path
        for package in ("headwise", "hydra_plugins")
        for path in (ROOT / "src" / package).rglob("*.*")
        if path.is_file() and path.suffix != ".pyc"
    }
    configs = {f"headwise/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert {"headwise/py.typed", *sources, *configs} <= in_wheel
    with tarfile.open(built[".gz"]) as archive:
        in_sdist = {name.split("/")[1] for name in archive.getnames()}
    assert {"src", "conf", "tests", "docs", "requirements.lock", "LICENSE"} <= in_sdist
    assert not {"results", ".ci", ".venv", "site", ".git"} & in_sdist


def test_source_distribution_installs_the_same_files(built, installed, tmp_path):
    other = Environment(tmp_path, built[".gz"])
    records = [
        set((one.site / f"{NAME}.dist-info/RECORD").read_text("utf-8").splitlines())
        for one in (installed, other)
    ]
    differing = {line.split(",")[0] for line in records[0] ^ records[1]}
    # where it came from, and the script with the path of its Python
    assert differing <= {f"{NAME}.dist-info/direct_url.json", "../../../bin/headwise"}


def test_wheel_trains_and_translates_away_from_the_checkout(installed):
    assert "experiment=demo" in installed.call("headwise", "train", "--help")
    installed.call("headwise", "train", *TRAIN)
    reason, *places = installed.call("python", "-c", USE).splitlines()
    assert reason == "None", "the kernels were not compiled"
    assert list((installed.folder / "cache/native").glob("*.so"))
    assert [Path(place).is_relative_to(installed.site) for place in places] == [True] * 3
    assert installed.call("headwise", "--version") == f"headwise {__version__}\n"


def test_types_of_the_wheel_are_read(installed):
    (installed.folder / "mypy.ini").write_text(MYPY, encoding="utf-8")
    (installed.folder / "typed.py").write_text(TYPED, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", installed.python, "typed.py"],
        cwd=installed.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 'Revealed type is "str"' in checked.stdout, checked
    assert 'Argument 1 to "load" has incompatible type "float"' in checked.stdout


def test_extras_and_lock_agree():
    """Every package that an extra names is pinned."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pinned = re.findall(r"^([\w.-]+)==", LOCK.read_text("utf-8"), re.M)
    extras = project["optional-dependencies"].values()
    named = {re.split(r"[\[>=<;]", line)[0] for lines in extras for line in lines} - {"headwise"}
    assert named <= set(pinned)
