"""``make test-gpu`` and ``make wheels``: tests on one GPU, with the CUDA torch of any interpreter, without root, engine or network.

    python -m tests.gpu run [--parts nccl,digests] [--out tests/gpu/out]
    python -m tests.gpu wheels 3.12

``run`` makes the environment .venv-gpu beside the interpreter that runs it: its packages, this checkout, and from wheels/3.12 what
it lacks. A rehearsal (CCBED_GPU_REHEARSAL=1) does the same on the CPU. Only the standard library is imported in this file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import venv
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
#: What tests need beside the dependencies of ccbed: names in pyproject.toml's extras.
TOOLS = ("hypothesis", "nvidia-ml-py", "pytest", "pytest-timeout")
TORCH, PYTHON = (2, 4), (3, 11)
#: Seconds after which no other test begins, and of each: with the environment, all of it ends within eight minutes.
ALL_S, EACH_S = 400, 100
MOST_MIB = 45
#: Wheels for these are taken: glibc 2.28 is that of the oldest distributions with a driver for CUDA 12.
GLIBC = range(5, 29)
REHEARSAL = "CCBED_GPU_REHEARSAL"


class Unusable(Exception):
    """This machine or interpreter cannot run the tests; the message says why and what next."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: that of pytest, or 3 where the tests cannot run."""
    options = _parse(arguments)
    try:
        return run(options.parts, options.out, options.venv) if options.verb == "run" else gather(options.version)
    except Unusable as error:
        print(f"{'test-gpu' if options.verb == 'run' else 'wheels'}: {error}", file=sys.stderr)
        return 3


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Tests on one GPU.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run_parser = verbs.add_parser("run", help="run the tests with this interpreter's torch")
    run_parser.add_argument("--parts", default="", help=f"some of {','.join(parts())}; all by default")
    run_parser.add_argument("--out", type=Path, default=FOLDER / "out", help="where the report is written")
    run_parser.add_argument("--venv", type=Path, default=ROOT / ".venv-gpu", help="the environment that is made for it")
    verbs.add_parser("wheels", help="gather what an interpreter lacks").add_argument("version", metavar="3.12")
    return parser.parse_args(arguments)


def parts() -> list[str]:
    """The names of the parts: a part is a file of tests."""
    return sorted(path.stem[len("test_") :] for path in FOLDER.glob("test_*.py"))


def run(names: str, out: Path, folder: Path) -> int:
    """Run the tests of these parts, and write the report."""
    files = _files(names)
    require_gpu()
    require_torch()
    python = environment(folder.resolve(), ROOT / "wheels" / _version())
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-m", "gpu", "--durations", "10", "-p", "no:cacheprovider"]
    limits = [] if is_rehearsal() else [f"--session-timeout={ALL_S}", f"--timeout={EACH_S}"]
    report = out / "report.json"
    report.unlink(missing_ok=True)
    code = subprocess.call([*command, *limits, *files], cwd=ROOT, env={**_tools(), "CCBED_GPU_OUT": str(out)})
    if not report.exists():
        raise Unusable(f"pytest exited with {code} before the first test, see above")
    return conclude(report, code)


def conclude(report: Path, code: int) -> int:
    """Print how many tests had which outcome, and those that did not run by name. A test for which no time was left is no pass."""
    tests = json.loads(report.read_text())["tests"]
    for entry in tests:
        if entry["outcome"].startswith("not "):
            print(f"  {entry['outcome']}: {entry['test']}")
    counts = Counter(entry["outcome"] for entry in tests)
    print(f"test-gpu: {', '.join(f'{number} {outcome}' for outcome, number in sorted(counts.items()))}; {report}")
    return code or int("not run" in counts)


def _tools() -> dict[str, str]:
    """The environment of the tests: in a rehearsal a stand-in for nvidia-smi is the first on PATH."""
    path = os.environ.get("PATH", os.defpath)
    return {**os.environ, "PATH": f"{FOLDER / 'stand_in'}:{path}" if is_rehearsal() else path}


def _files(names: str) -> list[str]:
    """The files of these parts. Raises Unusable for a name that is none."""
    chosen = [name for name in re.split(r"[,\s]+", names) if name] or parts()
    unknown = sorted(set(chosen) - set(parts()))
    if unknown:
        raise Unusable(f"PARTS: unknown {', '.join(unknown)}; the parts are {','.join(parts())}")
    return [f"tests/gpu/test_{name}.py" for name in chosen]


def require_gpu() -> None:
    """Raises Unusable where the driver's tool sees no GPU."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
        listed, reason = done.stdout, (done.stdout + done.stderr).strip().partition("\n")[0] or "it lists none"
    except (OSError, subprocess.TimeoutExpired) as error:
        listed, reason = "", str(error)
    if not re.search(r"^GPU \d", listed, re.MULTILINE) and not is_rehearsal():
        raise Unusable(f"no NVIDIA GPU on this machine (nvidia-smi -L: {reason})")


def require_torch() -> None:
    """Raises Unusable where this interpreter is too old, or has no torch that can use the GPU."""
    if sys.version_info < PYTHON:
        raise Unusable(f"{sys.executable} is Python {_version()}: 3.11 or newer is needed (make test-gpu PYTHON=PATH)")
    warnings.simplefilter("ignore")  # such as that numpy is missing
    try:
        import torch
    except ImportError as error:
        raise Unusable(
            f"{sys.executable} has no torch ({error}); name the interpreter that has it: make test-gpu PYTHON=PATH"
        ) from None
    if tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2]) < TORCH:
        raise Unusable(f"{sys.executable} has torch {torch.__version__}: 2.4 or newer is needed")
    if not is_rehearsal() and (obstacle := _obstacle(torch.cuda)):
        raise Unusable(f"torch {torch.__version__} of {sys.executable} cannot use the GPU of this machine: {obstacle}")


def _obstacle(cuda: Any) -> str:
    """Why torch cannot use the GPU; empty if it can."""
    try:
        cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return ""


def is_rehearsal() -> bool:
    """Whether the tests run on the CPU, in place of a GPU."""
    return os.environ.get(REHEARSAL) == "1"


def environment(folder: Path, wheels: Path) -> Path:
    """The interpreter of the environment, which is made anew unless it is there for the same interpreter and requirements."""
    python, stamp = folder / "bin/python", folder / "made-for"
    key = "\n".join([sys.executable, *_inherited(), *requirements()])
    if stamp.exists() and stamp.read_text() == key:
        return python
    venv.create(folder, clear=True, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    lines = [str(ROOT), str(ROOT / "orchestrator/packages")]
    lines += [f"import site; site.addsitedir({path!r})" for path in _inherited()]
    (site / "beside.pth").write_text("\n".join(lines) + "\n")
    missing = list(_missing(requirements()))
    if missing or any(wheels.glob("*.whl")):  # what the interpreter has may be too old
        _install(python, wheels, missing)
    stamp.write_text(key)
    return python


def _inherited() -> list[str]:
    """The directories from which this interpreter imports packages."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    outside = {str(ROOT), "", *own, *(f"{path}/lib-dynload" for path in own)}
    return [path for path in sys.path if path not in outside and Path(path).is_dir()]


def requirements() -> list[str]:
    """The dependencies of ccbed and the tools of the tests, as pyproject.toml has them."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [*project["dependencies"], *dict.fromkeys(line for line in extras if _name(line) in TOOLS)]


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def _missing(lines: Iterable[str]) -> Iterable[str]:
    """Requirements without a distribution of that name."""
    for line in lines:
        try:
            importlib.metadata.version(_name(line))
        except importlib.metadata.PackageNotFoundError:
            yield line


def _install(python: Path, wheels: Path, missing: Sequence[str]) -> None:
    """Install from the wheels alone, by the pip that lies among them. Raises Unusable."""
    remedy = (
        f"where there is a network, gather them by make wheels PYTHON_VERSION={_version()}, and bring {wheels} along"
    )
    pip = next(iter(wheels.glob("pip-*.whl")), None)
    if pip is None:
        raise Unusable(f"{sys.executable} lacks {', '.join(map(_name, missing))}; {remedy}")
    command = [str(python), f"{pip}/pip", "install", "--quiet", "--no-index", "--find-links", str(wheels)]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", *requirements()], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Unusable(f"pip could not install what is missing: {_last_line(done.stderr)}; {remedy}")


def gather(version: str) -> int:
    """Download the wheels for a Python of this version, on this architecture. Raises Unusable if they are too large."""
    folder = ROOT / "wheels" / version
    if not re.fullmatch(r"3\.\d+", version):
        raise Unusable(f"PYTHON_VERSION: must be like 3.12 (got {version!r})")
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.whl"):
        path.unlink()
    platforms = [f"manylinux_2_{minor}_{platform.machine()}" for minor in GLIBC]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", version]
    command += [word for name in platforms for word in ("--platform", name)]
    done = subprocess.run([*command, *requirements(), "pip"], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Unusable(f"pip could not download the wheels: {_last_line(done.stderr)}")
    return _weigh(folder)


def _weigh(folder: Path) -> int:
    """Print how large the wheels are. Raises Unusable above the limit."""
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.whl")}
    total, largest = sum(sizes.values()) / 2**20, max(sizes, key=lambda name: sizes[name])
    if total > MOST_MIB:
        raise Unusable(f"{total:.1f} MiB in {folder}, the limit is {MOST_MIB}; the largest is {largest}")
    print(f"wheels: {len(sizes)} files, {total:.1f} MiB, in {folder}")
    return 0


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def _version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


if __name__ == "__main__":
    sys.exit(main())
