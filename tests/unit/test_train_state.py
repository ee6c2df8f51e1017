from __future__ import annotations

from dataclasses import fields

from headwise.train.state import TrainState


def test_the_state_round_trips() -> None:
    state = TrainState(7, 99, {"epoch": 2, "batch": 3}, 5, 6, 1.5, 2.5, 40, -0.25, 4, 2, True)
    fresh = TrainState()
    assert all(getattr(state, f.name) != getattr(fresh, f.name) for f in fields(state))
    assert TrainState.from_dict(state.to_dict()) == state
    assert TrainState.from_dict(fresh.to_dict()).best_score is None
