import numpy as np
import pytest
import torch

from celrec.runtime.threads import flushed_denormals


def tiny_survives():
    return bool(torch.tensor([1e-40]) * 1 != 0)


def test_tiny_numbers_are_zero_inside_and_themselves_again_outside():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    torch.set_flush_denormal(False)
    assert tiny_survives()
    with flushed_denormals():
        assert not tiny_survives()
        with flushed_denormals():
            assert not tiny_survives()
        assert not tiny_survives()
    assert tiny_survives()
    assert float(np.float32(1e-40)) != 0


def test_an_error_inside_does_not_leave_them_flushed():
    with pytest.raises(RuntimeError), flushed_denormals():
        raise RuntimeError
    assert tiny_survives()
