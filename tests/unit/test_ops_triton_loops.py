"""A rule of Triton's compiler that its interpreter does not have."""

import ast
from pathlib import Path

import headwise.ops

FOLDER = Path(headwise.ops.__path__[0])
SOURCES = [*FOLDER.glob("triton/*.py"), *FOLDER.glob("*/triton*.py")]


def copies(node):
    """Assignments of a variable to another, `name = other`, and their lines."""
    for one in ast.walk(node):
        if not isinstance(one, ast.Assign):
            continue
        for target in one.targets:
            pairs = [(target, one.value)]
            if isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple):
                pairs = list(zip(target.elts, one.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(value, ast.Name):
                    yield name.id, value.id, one.lineno


def lost_copies(source):
    """Copies in loops of what is also a copy before the loop: Triton does not carry them."""
    messages = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for loop in ast.walk(function):
            if isinstance(loop, ast.For | ast.While):
                before = {copy[:2] for copy in copies(function) if copy[2] < loop.lineno}
                lost = {copy[:2] for copy in copies(loop)} & before
                messages += [f"{function.name}: {name} = {value}" for name, value in sorted(lost)]
    return messages


def test_no_variable_of_a_loop_starts_as_a_copy_of_another():
    assert len(SOURCES) > 10
    for path in SOURCES:
        assert not lost_copies(path.read_text(encoding="utf-8")), path.name


def test_a_lost_copy_is_found():
    kernel = """
def solve(shift):
    last, left = shift, 3
    while left > 0:
        last = shift
        shift = shift / 2
        left -= 1
    return last
"""
    assert lost_copies(kernel) == ["solve: last = shift"]
