"""The cells: a job of a framework, a fault, and which parts of the state the job loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: Family -> the packages of its environment beside torch.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "hf": ("transformers==5.24.0", "accelerate==1.15.0", "torchdata"),
    "lightning": ("lightning==2.6.6", "torchdata"),
    "deepspeed": ("deepspeed==0.19.8",),
    "torchdata": ("torchdata",),
    "torchtitan": ("torchtitan==0.3.0",),
    "torchft": ("torchft==0.2.0",),
    "nvrx": ("nvidia-resiliency-ext==0.4.1",),
    "torch": (),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """``lost``: the parts that the verdict must name, one of a group that is joined by "|" is enough; none: the job is right.
    ``fault``: options of ``ccbed run``.
    """

    family: str
    job: str
    arguments: str = ""
    fault: str = "--fail-node 2"
    lost: tuple[str, ...] = ()

    @property
    def is_otherwise(self) -> bool:
        """Whether the job trains otherwise than undisturbed: one that resumes an older checkpoint does not, and loses time."""
        return any(group != "resumed-newest" for group in self.lost)

    @property
    def name(self) -> str:
        return " ".join(
            filter(
                None, (self.job.removesuffix(".py"), self.arguments, self.fault.replace("--fail-node 2", "").strip())
            )
        )


def _of(family: str, job: str) -> Callable[..., Cell]:
    """Return what makes the cells of a job, from its arguments and what it loses."""

    def cell(arguments: str = "", *lost: str, fault: str = "--fail-node 2") -> Cell:
        return Cell(family, job, arguments, fault, lost)

    return cell


def _stateful(arguments: str = "", *lost: str) -> Cell:
    return Cell("torchdata", "fsdp2.py", f"--stateful {arguments}".strip(), lost=lost)


_hf, _acc, _light = _of("hf", "hf.py"), _of("hf", "acc.py"), _of("lightning", "light.py")
_ds, _fsdp, _titan = _of("deepspeed", "ds.py"), _of("torch", "fsdp2.py"), _of("torchtitan", "titan.py")
_ft, _nvrx = _of("torchft", "ft.py"), _of("nvrx", "nvrx.py")
FIRST = "--fail-node 0"
SHRINK = "--fail-node 2 --nodes 3:4 --recovery shrink"
TORCHRUN = "--fail-node 2 --launcher torchrun-best"
NOTICE = "preempt: {node: 2, grace_s: 20, at: {step: 21}}"
CELLS: tuple[Cell, ...] = (
    _hf(), _hf(fault=FIRST), _hf("--accumulate 2"), _hf("--bf16"), _hf("--workers 2", "RNG|bit-exact"),
    _hf("--evaluate 4"), _hf("--evaluate 10 --best"),
    _hf("--broken optimizer", "optimizer"), _hf("--broken rng", "RNG"), _hf("--ignore-data-skip", "data position"),
    _hf("--broken early", "resumed-newest"), _hf("--broken weights-only", "optimizer"),
    _hf("--broken scratch", "resumed-newest"),
    _hf("--only-model", "optimizer"), _hf("--workers 2 --short-workers"), _hf("--evaluate 10 --best --limit 1"),
    _hf("--ignore-data-skip --save 25 --steps 70"), _hf("--ignore-data-skip --accumulate 2", "data position"),
    _hf("--evaluate 10 --best --broken optimizer", "optimizer"), _hf("--broken batch", "data position"),
    _hf("--broken fixed --limit 4", "resumed-newest", fault="--fail-node 2 --at after-save=3"), _hf("--compile aot_eager"),
    _hf(fault=TORCHRUN), _hf("--broken optimizer", "optimizer", fault=TORCHRUN),
    _hf("--preempt", fault=NOTICE),
    _acc("--shadow"), _acc("--shadow --broken shadow", "copies of the model|saved state"), _acc("--broken optimizer", "optimizer"),
    _acc("--plain-sampler", "data position"), _acc("--dropout 0.1", "RNG"), _acc("--dropout 0.1 --save 10"),
    _acc("--dropout 0.1 --save 10 --broken rng", "RNG"), _acc("--compile aot_eager"), _acc("--preempt", fault=NOTICE), _acc(fault=TORCHRUN),
    _acc(), _acc(fault=FIRST), _acc("--accumulate 2"), _acc("--precision bf16"), _acc("--stateful"), _acc("--evaluate"), _acc("--ema"),
    _acc("--broken data", "data position"), _acc("--broken weights-only", "optimizer"), _acc("--ema --broken ema", "copies of the model"),
    _acc("--broken set_epoch", "data position"),  # its loader counts epochs itself, from 0 again after a restart
    _light("--no-shuffle", "data position"), _light("--no-shuffle --dropout 0.1", "data position", "RNG"),
    _light("--stateful"), _light("--stateful", fault=FIRST), _light("--stateful --precision bf16-mixed"), _light("--stateful --evaluate 5"),
    _light("--stateful --accumulate 2", "data position"), _light("--stateful --ema"), _light("--stateful --dropout 0.1", "RNG"),
    _light("--stateful --broken optimizer", "optimizer"), _light("--stateful --broken scheduler", "learning rate|scheduler"),
    _light("--stateful --broken weights-only", "optimizer"), _light("--stateful --broken scratch", "resumed-newest"),
    _light("--stateful --ema --broken ema", "copies of the model"), _light("--stateful --average"),
    _light("--stateful --average --broken average", "copies of the model|buffers"), _light("--stateful --scaler"),
    _light("--stateful --average --broken late", "copies of the model|buffers"),
    _light("--stateful --scaler --broken scaler", "scaler"), _light("--stateful --compile aot_eager"),
    _light("--stateful --preempt", "data position|bit-exact", fault=NOTICE), _light("--stateful", fault=TORCHRUN),
    # It saves step=8.ckpt, then last.ckpt, which the fault cuts; Lightning looks for the last alone, and begins anew.
    _light("--stateful", "resumed-newest", fault="--fail-node 0 --at save-during"),
    _ds(), _ds(fault=FIRST), _ds("--zero 2"), _ds("--zero 3"), _ds("--zero 0"), _ds("--bf16"), _ds("--accumulate 2"),
    _ds("--broken optimizer", "optimizer"), _ds("--broken scheduler", "learning rate|scheduler"), _ds("--broken weights-only", "optimizer"),
    _ds("--broken data"), _ds("--save 7 --broken data", "data position"),
    _ds("--bf16 --broken masters", "weights|resumed-from"), _ds("--broken missing", "finished"), _ds("--ema"),
    _ds("--ema --broken ema", "copies of the model"), _ds("--preempt", fault=NOTICE), _ds("--evaluate 4"), _ds("--zero 0", fault=SHRINK),
    _ds("--zero 0 --broken optimizer", "optimizer", fault=SHRINK), _ds("--schedule WarmupDecayLR"),
    _ds("--schedule WarmupDecayLR --broken scheduler", "learning rate|scheduler"), _ds("--schedule OneCycle"),
    _ds("--schedule OneCycle --broken scheduler", "learning rate|scheduler"),
    # Rank 0 names the new checkpoint in `latest` before the other ranks have written theirs: no restart can load what the fault cut.
    _ds("", "finished", fault="--fail-node 2 --at save-during"),
    _ds("--zero 2 --broken optimizer", "optimizer"), _ds("--zero 3 --broken optimizer", "optimizer"),
    # ZeRO refuses to load the partitions of another number of ranks.
    _ds("--zero 3 --broken weights-only", "optimizer"), _ds("", "finished", fault=SHRINK),
    _fsdp(), _fsdp(fault=FIRST), _fsdp("--sync"), _fsdp("--bf16"), _fsdp("--ema"), _fsdp("--sync", fault="--fail-node 2 --at save-during"),
    _fsdp("--broken optimizer", "optimizer"), _fsdp("--broken scheduler", "learning rate|scheduler"), _fsdp("--broken rng", "RNG"),
    _fsdp("--broken data", "data position"),
    _fsdp("--sync", fault=FIRST), _fsdp("--sync --bf16"), _fsdp("--sync --broken optimizer", "optimizer"),
    _fsdp("--sync --broken scheduler", "learning rate|scheduler"), _fsdp("--sync --broken rng", "RNG"),
    _fsdp("--sync --broken data", "data position"),
    _fsdp(fault="--fail-node 2 --at save-during"),
    _fsdp("--sync --ema --broken ema", "copies of the model|saved state"), _fsdp("--sync --scaler"),
    _fsdp("--sync --scaler --broken scaler", "scaler"), _fsdp("--sync --compile aot_eager"), _fsdp("--sync --preempt", fault=NOTICE),
    _fsdp("--sync", fault=TORCHRUN), _fsdp("--broken optimizer", "optimizer", fault=TORCHRUN),
    _fsdp("--sync --full", fault=SHRINK), _fsdp("--sync --full --broken optimizer", "optimizer", fault=SHRINK),
    _fsdp("--sync --broken metadata", "resumed-newest"), _fsdp("--sync --broken shard", "weights|optimizer"),
    _fsdp("--sync --broken early", "resumed-newest"),
    _stateful(), _stateful("--sync"), _stateful("--broken data", "data position"),
    _titan(), _titan(fault=FIRST), _titan("--groups"), _titan("--fused"), _titan("--asynchronous"),
    _titan("--broken optimizer", "optimizer"), _titan("--groups --broken optimizer", "optimizer"),
    _titan("--broken scheduler", "learning rate|scheduler"), _titan("--broken data", "data position"),
    _ft(), _ft(fault=FIRST), _ft("--heal"), _ft("--broken optimizer", "optimizer"), _ft("--heal --broken optimizer", "optimizer"),
    _ft("--broken data", "data position"), _ft("--broken scheduler", "learning rate|scheduler"),
    _nvrx(), _nvrx(fault=FIRST), _nvrx("--broken optimizer", "optimizer"), _nvrx("--broken scheduler", "learning rate|scheduler"),
    _nvrx("--broken data", "data position"),
)  # fmt: skip
