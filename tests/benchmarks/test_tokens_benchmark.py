"""The benchmark of tokens: what it delivers is checked, and wrong documents are found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.suites.tokens import SCALES, Packed, main, write, wrong_documents


def test_tokens_are_measured_beside_other_loaders(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeats", "1", "--out", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "zarrfeed, packed: each document once" in out
    assert "nanoGPT's get_batch" in out
    assert (tmp_path / "tokens.json").exists()
    written = write(tmp_path, SCALES["small"])
    batches = [(x.clone(), ids) for x, ids in Packed(written)]
    assert wrong_documents(batches, written) == ""
    batches[0][0][0, 0] += torch.tensor(1)
    assert wrong_documents(batches, written) == "documents are missing, cut or repeated"
