"""torchtitan's Trainer with a small Llama: `titan.py OUT STYLE`.

STYLE: words joined by +: fsdp, tp, hsdp (how two or four ranks share the work), full_dtensor, bf16, accumulate,
validate, workers (of the loader), ends (the data run out), own (torchtitan's checkpoints, and the weights at its end),
override (the checkpointer comes by torchtitan's override), slow, longer (24 steps, not 10),
plain (not kept).
Faults are those of faults.py; WHERE: step, validate, save (torchtitan's own), each of that step.
Left in OUT: final_RANK, losses_RANK, fired.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import titan_on_cpu  # noqa: F401 - before torchtitan
import torch
import torch.distributed as dist
from faults import strike
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import IterableDataset
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.config.configs import CommConfig, DebugConfig
from torchtitan.config.override import OverrideConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry, parallelize_llama
from torchtitan.trainer import Trainer

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, LENGTH, BATCH = 24 if "longer" in STYLE else 10, 16, 2


class Tokens(IterableDataset):
    """Numbers, of which some are drawn from the generator of the process that reads them."""

    def __init__(self, rank: int, end: int, draws: bool) -> None:
        self.rank, self.end, self.draws, self.at = rank, end, draws, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.end:
            self.at += 1
            rows = torch.Generator().manual_seed(1000 * self.at + self.rank)
            tokens = torch.randint(0, 2048, (LENGTH + 1,), generator=rows)
            if self.draws:
                tokens[0] = torch.randint(0, 2048, ())
            yield {"input": tokens[:-1]}, tokens[1:]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Loader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        end: int = 1 << 30
        infinite: bool = True  # the Validator sets it

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **options: Any
    ) -> None:
        data = Tokens(dp_rank, config.end, draws=config.num_workers == 0)
        every = options.get("snapshot_every_n_steps", 1)
        super().__init__(
            data, dp_rank, dp_world_size, batch_size=local_batch_size, num_workers=config.num_workers,
            snapshot_every_n_steps=every,
        )  # fmt: skip


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, *args: Any, **options: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *args: Any, **options: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return 2048


class Metrics(MetricsProcessor):
    """Writes each loss down, bit for bit."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        pass

    def log(self, step: int, loss: float, largest: float, norm: float, extra_metrics: Any = None) -> None:
        strike("step", step)
        self._write(f"{step} {loss.hex()} {norm.hex()} {extra_metrics['n_tokens_seen']}")
        time.sleep(0.2 if "slow" in STYLE else 0)

    def log_validation(self, loss: float, step: int, extra_metrics: Any = None) -> None:
        strike("validate", step)
        self._write(f"{step}.eval {loss.hex()}")

    def _write(self, line: str) -> None:
        with (OUT / f"losses_{RANK}").open("a") as file:
            file.write(f"{line}\n")


def checkpoint() -> Any:
    own: dict[str, Any] = {"interval": 4, "last_save_model_only": True, "folder": f"own{'_plain' * ('plain' in STYLE)}"}
    if "plain" in STYLE or "override" in STYLE:
        return CheckpointManager.Config(enable="own" in STYLE, **own)
    import ftlaunch_hooks as ft

    return ft.torchtitan.CheckpointManager.Config(snapshots_only="own" not in STYLE, **own)


def parallelism() -> ParallelismConfig:
    backend: Any = next((one for one in ("full_dtensor", "spmd_types") if one in STYLE), "partial_dtensor")
    copies = 2 if "hsdp" in STYLE else 1
    return ParallelismConfig(
        data_parallel_replicate_degree=copies, tensor_parallel_degree=2 if "tp" in STYLE else 1, spmd_backend=backend
    )


def parallelize(model: Any, **options: Any) -> Any:
    """As torchtitan does; gloo can sum gradients, and cannot multiply them as it sums."""
    model = parallelize_llama(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def config() -> Any:
    spec = model_registry("debugmodel")
    spec.parallelize_fn = parallelize
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    shares = WORLD // (2 if "tp" in STYLE else 1)
    groups = [
        ParamGroupConfig(pattern="norm", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.02, "weight_decay": 0.0}),
        ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01}),
    ]
    return Trainer.Config(
        model_spec=spec,
        dump_folder=str(OUT),
        tokenizer=NoTokenizer.Config(),
        dataloader=Loader.Config(num_workers=2 * ("workers" in STYLE), end=15 if "ends" in STYLE else 1 << 30),
        optimizer=OptimizersContainer.Config(param_groups=groups, implementation="for-loop"),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=3),
        loss=CrossEntropyLoss.Config(global_vocab_size=2048),
        training=TrainingConfig(
            local_batch_size=BATCH, global_batch_size=BATCH * shares * (1 + ("accumulate" in STYLE)), seq_len=LENGTH,
            steps=STEPS, disable_cuda_graphs=True, mixed_precision_param="bfloat16" if "bf16" in STYLE else "float32",
        ),
        parallelism=parallelism(),
        activation_checkpoint=None,
        metrics=Metrics.Config(log_freq=1),
        checkpoint=checkpoint(),
        validator=Validator.Config(enable="validate" in STYLE, freq=3, steps=2, dataloader=Loader.Config()),
        debug=DebugConfig(seed=7),
        comm=CommConfig(trace_buf_size=0),
        override=OverrideConfig(
            imports=["ftlaunch_hooks.adapters.torchtitan.override.keep_safe"] if "override" in STYLE else []
        ),
    )  # fmt: skip


def whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def digest(state: dict[str, Any]) -> str:
    held = hashlib.sha256()
    for name, value in sorted(state.items()):
        held.update(name.encode())
        held.update(
            whole(value).float().cpu().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
        )
    return held.hexdigest()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    trainer = config().build()
    if "own" in STYLE:
        save = trainer.checkpointer._save

        def struck(step: int, last: bool = False) -> bool:
            done: bool = save(step, last)
            strike("save", step)
            return done

        trainer.checkpointer._save = struck
    try:
        trainer.train()
    except Exception:
        trainer.close()
        raise
    trainer.close()
    model = digest({name: value for part in trainer.model_parts for name, value in part.state_dict().items()})
    counts = trainer.step, trainer.ntokens_seen, [one.get_last_lr() for one in trainer.lr_schedulers]
    optimizer = digest(trainer.optimizers.state_dict())
    (OUT / f"final_{RANK}").write_text(f"{model} {optimizer} {counts} {torch.rand(1).item().hex()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
