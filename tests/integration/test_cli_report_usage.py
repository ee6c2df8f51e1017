"""`headwise report`: what it says of its use, and what it refuses before anything is read."""

from __future__ import annotations

import pytest

from command_line import CommandLine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "paper=NAME runs=[FOLDER,…] makes a paper's tables (an2020, "),
        (("run=x",), "run=FOLDER needs page=true, figures=true or both"),
        (("paper=correia2019", "page=true"), "page=true needs run=FOLDER"),
        (("paper=correia2019", "run=x", "page=true"), "give one"),
        (("heads=true", "run=x", "figures=true"), "heads=true needs paper=NAME"),
        (("run=x", "page=true", "figures=true", "output=y"), "output= names a file for page=true"),
        (("paper=correia2018",), "Did you mean paper=correia2019?"),
        (("paper=correia2019", "seeds=[1,1]"), "seeds must be different numbers"),
        (("paper=correia2019", "seedz=[1]"), "Did you mean seeds?"),
        (("paper=correia2019", "runs=outputs/x"), "runs is a list: give runs=[outputs/x]"),
        (("paper=correia2019", 'overrides=["a=b"]'), "does not compose"),
    ],
)
def test_what_cannot_be_reported_is_refused(
    headwise: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    ended = headwise("report", *arguments)
    assert ended.code == 2
    assert message in ended.err


def test_help_names_both_uses(headwise: CommandLine) -> None:
    ended = headwise("report", "--help")
    assert ended.code == 0
    for wanted in ("paper=NAME", "page=true", "figures=true", "launch=true", "correia2019_small"):
        assert wanted in ended.out
