"""What learning a batch tells."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Learned(NamedTuple):
    """What was predicted for events before they were learned, and how well each was known."""

    predictions: NDArray[np.float32]
    targets: NDArray[np.float32]
    user_events: NDArray[np.int64]
    """How many events the user had when the prediction was made: before the batch."""
    item_events: NDArray[np.int64]
