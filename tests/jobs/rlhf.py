"""scripts/train_rlhf_toy.py with faults: FAULTS="kind rank attempt call, ..." strike at that call of the policy.

kind: sigkill (this rank) or sigterm (the supervisor). Each leaves a line in `<cwd>/fired`.
"""

import itertools
import os
import runpy
import signal
import time
from pathlib import Path

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_hooks.process.bootstrap import own_page

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_rlhf_toy.py"
FAULTS = [fault.split() for fault in os.environ.get("FAULTS", "").split(",") if fault]
HERE = [os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]]
CALLS = itertools.count(1)


def strike(module: nn.Module, args: object) -> None:
    trained_policy = type(module).__name__ == "Net" and module.body[2].out_features > 1
    if not trained_policy or not next(module.parameters()).requires_grad:
        return
    here = [*HERE, str(next(CALLS))]
    for kind, *where in FAULTS:
        if where == here:
            with Path("fired").open("a") as file:
                file.write(f"{kind}\n")
            if kind == "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)
            os.kill(os.getppid(), signal.SIGTERM)
            wait_until(lambda: own_page().stop_at != NONE, time.monotonic() + 30)  # not to be at the end before


register_module_forward_pre_hook(strike)
runpy.run_path(str(SCRIPT), run_name="__main__")
time.sleep(0.2)  # torch 2.13 may abort when the interpreter ends within milliseconds of the last collective
