"""log.txt of a run."""

import logging
import warnings
from contextlib import suppress

from headwise.errors import RunError
from headwise.runs.log import LogFile, text_log


def test_log_has_warnings_from_before_its_folder_and_the_error(tmp_path):
    with warnings.catch_warnings(), suppress(RunError), text_log() as held:
        warnings.simplefilter("always")
        warnings.warn("of Python", stacklevel=1)
        held.setTarget(LogFile(tmp_path))
        logging.getLogger("headwise.x").warning("of a part")
        raise RunError("the end")
    logging.getLogger("headwise.x").warning("after the run")
    text = (tmp_path / "log.txt").read_text(encoding="utf-8")
    parts = "UserWarning: of Python", "WARNING of a part", "ERROR RunError: the end"
    places = [text.find(part) for part in parts]
    assert -1 < places[0] < places[1] < places[2]
    assert "after the run" not in text


def test_full_disk_does_not_end_the_run(tmp_path, capsys):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with text_log() as held:
        held.setTarget(LogFile(tmp_path))
        logging.getLogger("headwise").warning("a line")
    assert "Traceback" not in capsys.readouterr().err
