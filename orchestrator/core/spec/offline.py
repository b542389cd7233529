"""Variables that keep a reference run off the services that a job reports to; the user's ``--env`` replaces them one by one."""

from __future__ import annotations

#: The names as their libraries document them.
VARIABLES = {
    "WANDB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "mlruns",  # a directory of the copy
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "local",
    "HF_HUB_OFFLINE": "1",
}
