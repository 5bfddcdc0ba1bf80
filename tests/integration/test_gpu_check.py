from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "runners" / "gpu_check.sh"
pytestmark = pytest.mark.integration


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: run runners/gpu_check.sh itself")
def test_without_a_gpu_it_says_so_and_records_nothing(tmp_path: Path) -> None:
    environment = {"PYTHON": sys.executable, "OUT": str(tmp_path / "out"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "gpu_check: torch sees no GPU here"
    assert not (tmp_path / "out").exists()
