"""The buckets and the timers of DistributedDataParallel. It times its iterations 0 to 10, and every hundredth, itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

#: Field -> DDP's average over the iterations that it has timed, in nanoseconds.
_TIMES = {
    "forward_s": "avg_forward_compute_time",
    "backward_s": "avg_backward_compute_time",
    "comm_s": "avg_backward_comm_time",
    "overlap_s": "avg_backward_compute_comm_overlap_time",
}


def read(modules: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The fields of a ``ddp`` line of each module that has timed an iteration; ``iteration``: the last one that it has timed."""
    for module in modules:
        if not hasattr(module, "_get_ddp_logging_data"):
            continue
        data = module._get_ddp_logging_data()
        times = {name: int(data[key]) / 1e9 for name, key in _TIMES.items() if data.get(key)}
        if times:
            sizes = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
            buckets = [int(size) for size in sizes.replace(",", " ").split()]
            yield {**times, "buckets": buckets, "iteration": data.get("iteration")}
