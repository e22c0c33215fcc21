import pytest

from celrec import CelrecError
from celrec.config.online import OnlineClusterConfig


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"schedule": "never"}, "schedule must be one of always, doubling, not 'never'"),
        ({"every": 0}, "every must be 1 or more, not 0"),
        ({"latest": -1}, "latest must not be negative, not -1"),
        ({"candidates": -3}, "candidates must not be negative, not -3"),
        ({"prior": -0.5}, "prior must not be negative, not -0.5"),
        ({"prior": float("nan")}, "prior must not be negative, not nan"),
    ],
)
def test_wrong_settings_are_told(wrong, told):
    with pytest.raises(CelrecError, match=told):
        OnlineClusterConfig(**wrong)
