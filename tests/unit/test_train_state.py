from __future__ import annotations

from headwise.train.state import TrainState


def test_the_state_round_trips() -> None:
    state = TrainState(
        update=7,
        tokens=99,
        data={"epoch": 2, "batch": 3},
        window_loss=1.5,
        best_score=-0.25,
        stopped_early=True,
    )
    assert TrainState.from_dict(state.to_dict()) == state
    assert TrainState.from_dict(TrainState().to_dict()).best_score is None
