from __future__ import annotations

import numpy as np
import pytest
import torch

from hge.estimator.row_buffer import WaitingRows


@pytest.mark.parametrize("calls", [[32], [64], [20, 44], [7, 25], [100, 28]])
def test_batches_hold_no_memory_but_their_own(calls: list[int]) -> None:
    waiting, left = WaitingRows.none(shape=(3,)), []
    for rows in calls:
        waiting.add(np.full((rows, 3), rows, np.float32), torch.full((rows,), rows))
        while len(waiting) >= 32:  # the last one of a call may leave in another round
            left.append(next(waiting.leave(size=32, least=32)))
        waiting.let_go()
    for batch in (*left, waiting.rows):
        assert batch.x.untyped_storage().nbytes() == batch.x.nbytes
        assert batch.y.untyped_storage().nbytes() == batch.y.nbytes
    assert [len(batch) for batch in left] == [32] * (sum(calls) // 32)
    learned = torch.cat([*(batch.y for batch in left), waiting.rows.y])
    assert learned.tolist() == [rows for rows in calls for _ in range(rows)]
