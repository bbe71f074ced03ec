"""A Trainer with EasyCkpt's lines: `easyckpt_hf.py OUT [TrainingArguments as flags]`.

PLAIN=1: not wrapped, as an undisturbed run without us; PLAIN=resume: it resumes from the Trainer's own checkpoint.
FAULT="RANK STEP; ...": killed there, one an attempt. STOP_AT: rank 0 gets a SIGTERM once so many steps are complete,
and steps take longer. HOLD_AT: once so many steps are complete, wait for the end. SPLIT=1: each rank has an output_dir
of its own, as on nodes that share none. NOT_ASKED=1: train() is not told to resume. Left in OUT: final_RANK (digest),
history_RANK (the log), steps_RANK, fired, held_RANK.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from accelerate import DistributedType, PartialState

OUT, RANK = Path(sys.argv[1]), os.environ.get("RANK", "0")
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
FAULTS = [one.split() for one in os.environ.get("FAULT", "").split(";") if one.strip()]
PLAIN = os.environ.get("PLAIN")
STOP_AT, HOLD_AT = (int(os.environ.get(name, "-1")) for name in ("STOP_AT", "HOLD_AT"))


class Faults(transformers.TrainerCallback):
    """Dies, or waits for its end, where it is told to."""

    def on_step_begin(self, args, state, control, **_):
        if STOP_AT >= 0:
            time.sleep(0.1)
        if state.global_step == STOP_AT and RANK == "0":
            os.kill(os.getpid(), signal.SIGTERM)
        if state.global_step == HOLD_AT:
            (OUT / f"held_{RANK}").touch()
            while True:
                signal.pause()

    def on_pre_optimizer_step(self, args, state, control, **_):
        with (OUT / f"steps_{RANK}").open("a") as file:
            file.write(f"{state.global_step}\n")
        if len(FAULTS) > ATTEMPT and [RANK, str(state.global_step)] == FAULTS[ATTEMPT]:
            with (OUT / "fired").open("a") as file:
                file.write(f"{RANK} {state.global_step} {ATTEMPT}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    (args,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses(sys.argv[2:])
    if "SPLIT" in os.environ:
        args.output_dir += f"_{RANK}"
    if args.deepspeed:  # Accelerate takes it on accelerators only: it is told that the ranks are on some
        assert args.device.type == "cpu"
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0)
    rows = torch.randint(0, 32, (30, 8))
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=args,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        data_collator=transformers.default_data_collator,
        callbacks=[Faults()],
    )
    if PLAIN:
        trainer.train(resume_from_checkpoint=True if PLAIN == "resume" else None)
    else:
        from ftlaunch_hooks.adapters.easyckpt.transformers import TrainerWrapper

        trainer = TrainerWrapper(trainer)
        trainer.train(resume_from_checkpoint="NOT_ASKED" not in os.environ)
    digest = hashlib.sha256()
    for tensor in trainer.model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    (OUT / f"final_{RANK}").write_text(digest.hexdigest())
    timed = ("runtime", "per_second")
    history = [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in trainer.state.log_history]
    (OUT / f"history_{RANK}").write_text(json.dumps(history))


main()
