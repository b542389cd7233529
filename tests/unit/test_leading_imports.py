"""What leads a script: a library that is imported before any statement that could change what it reads, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.rank.runtime import imports_ahead

#: Jobs that set something before they import their library, which reads it while it is imported.
SET_FIRST = (
    "import os\nos.environ['HF_HUB_OFFLINE'] = '1'\nimport library\n",
    "import os\nos.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')\nimport library\n",
    "from os import environ, putenv\nenviron |= {'OMP_NUM_THREADS': '4'}\nimport library\n",
    "import os\nos.environ.pop('CUDA_VISIBLE_DEVICES', None)\nimport library\n",
    "import sys\nsys.path.insert(0, 'own')\nimport library\n",
    "import sys\nsys.path += ['own']\nimport library\n",
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nimport library\n",
    "import warnings\nwarnings.filterwarnings('ignore')\nimport library\n",
    "import torch\ntorch.set_default_dtype(torch.float64)\nimport library\n",
    "import torch\ntorch.save = None\nimport library\n",
    "import os\nif True:\n    os.environ['A'] = '1'\nimport library\n",
    "import os\nclass Settings:\n    os.environ['A'] = '1'\nimport library\n",
    "import os\nA = [os.putenv('A', '1')]\nimport library\n",
    "import os\ndef f(a=os.putenv('A', '1')): pass\nimport library\n",
    "import atexit\n@atexit.register\ndef f(): pass\nimport library\n",
    "import os\ndel os.environ['A']\nimport library\n",
    "import own\nimport library\n",
    "import own_package.part\nimport library\n",
    "from . import part\nimport library\n",
    "import os, own, library\n",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text("import os\nos.environ['A'] = '1'\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").write_text("")
    (tmp_path / "model.py").write_text(
        "import math\nfrom torch import nn\nSIZE = 8\nclass Net(nn.Module):\n    wide = SIZE\n"
    )
    return tmp_path


def _find(folder: Path, source: str) -> imports_ahead.Leading:
    (folder / "job.py").write_text(source)
    return imports_ahead.Leading(str(folder / "job.py"), [str(folder)])


@pytest.mark.parametrize("source", SET_FIRST)
def test_a_library_that_a_job_imports_after_it_set_something_is_not_imported_ahead(folder: Path, source: str) -> None:
    leading = _find(folder, source)
    assert not [statement for statement in leading.imports if "library" in statement]
    assert leading.end


def test_imports_lead_in_their_order_and_those_of_the_users_modules_in_their_place(folder: Path) -> None:
    source = '"""A job."""\nfrom __future__ import annotations\nimport os, library\nfrom model import Net\nN: int = 2\nimport more as m\n'
    function = "def main():\n    os.environ['A'] = '1'\nif __name__ == '__main__':\n    main()\n"
    leading = _find(folder, source + function)
    assert leading.imports == ["import os", "import library", "import math", "from torch import nn", "import more as m"]
    assert leading.files == [str(folder / "job.py"), str(folder / "model.py")]
    assert leading.end == "job.py:9: if __name__ == '…':"


def test_a_dataclass_and_a_function_without_gradients_change_nothing(folder: Path) -> None:
    source = "import torch\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\nclass A:\n    b: list[int]\n"
    assert _find(folder, f"{source}@torch.no_grad()\ndef f(x): return x\nimport library\n").end == ""
