"""Any array that zarr-python's own test strategies make is read as zarr-python reads it, or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle import assert_parity, read_all
from zarrfeed import ConfigError, UnsupportedError, ZarrIterableDataset
from zarrfeed.dtypes import TORCH_DTYPES

strategies = pytest.importorskip("zarr.testing.strategies")

pytestmark = pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")


def reason_to_refuse(array: zarr.Array[Any]) -> str:
    try:
        ZarrIterableDataset(array).close()
    except UnsupportedError as error:
        return str(error)
    return ""


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large])
@given(data=st.data())
def test_generated_arrays_are_read_as_zarr_python_does_or_refused(data: st.DataObject) -> None:
    array = data.draw(strategies.simple_arrays())
    dtype = array.dtype
    readable = dtype.name in TORCH_DTYPES or dtype.kind in "MmS"
    if array.ndim == 0 or 0 in array.shape:
        with pytest.raises(ConfigError):
            ZarrIterableDataset(array)
        return
    refusal = reason_to_refuse(array)
    assert (refusal == "") == readable or "fill value" in refusal, refusal
    if refusal:
        return
    axis = data.draw(st.integers(0, array.ndim - 1), label="sample axis")
    expected = read_all(array, sample_axis=axis)
    if dtype.kind in "Mm":
        expected = expected.view(np.int64)
    elif dtype.kind == "S":
        expected = np.ascontiguousarray(expected).view(np.uint8).reshape(*expected.shape, dtype.itemsize)
    assert_parity(array, expected, sample_axis=axis, shuffle=data.draw(st.booleans(), label="shuffle"))
