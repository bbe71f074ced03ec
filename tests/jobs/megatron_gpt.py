"""A tiny GPT of Megatron-core, trained in Megatron-LM's loop with EasyCkpt's lines: `megatron_gpt.py OUT STYLE`.

STYLE: words joined by +: bf16, fp16, distributed (optimizer), accumulate, evaluate, workers (of loaders), late (saves
behind the evaluation), core (no Megatron-LM, so no arguments), old (Megatron-LM of 2023), slow, plain (not kept), early
(a wrong call), concat (as EasyCkpt is told to merge shards), rerun (Megatron's rerun state machine judges the losses).
The model is shared out between two ranks: tensor, pipeline, interleaved (a pipeline, of which each rank has two parts),
experts.
two: asks for snapshots at every other iteration, and for two checkpoints to be kept.
saves: leaves a checkpoint of Megatron-LM's own every four iterations; longer: makes 24 of them.
gathers: notes of each iteration, and of what was loaded, the whole state of each optimizer, as Megatron gathers it.
skips: the loss scale begins so high that FP16's first iterations are skipped.
FAULT: see faults.py. WHERE: step, evaluation, saving; NUMBER: the iteration.
Left in OUT: final_RANK (digest and counts), losses_RANK, fired; see megatron_gathered.py, too.
"""

import hashlib
import os
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import megatron_lm
import torch
from faults import in_own_save, strike

from megatron_on_cpu import ON_CPU  # isort: skip - before megatron
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.rerun_state_machine import (
    RerunDataIterator,
    RerunMode,
    get_rerun_state_machine,
    initialize_rerun_state_machine,
)
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron_gathered import gather

OUT, STYLE = Path(sys.argv[1]), set(sys.argv[2].split("+"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if "plain" not in STYLE:
    import ftlaunch_hooks.adapters.easyckpt.megatron.hook  # noqa: F401 - as EasyCkpt's users do
    from ftlaunch_hooks.adapters.easyckpt.megatron import (
        initialize_easyckpt,
        load_checkpoint,
        save_checkpoint_if_needed,
    )

DEVICE = "cpu" if ON_CPU else f"cuda:{RANK}"
LENGTH, MICRO = 8, 2
BATCH = MICRO * (4 if "accumulate" in STYLE else 2)
ITERATIONS = 24 if "longer" in STYLE else 12
HALF = next((word for word in ("bf16", "fp16") if word in STYLE), "")
DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16, "": torch.float32}[HALF]
args = Namespace(
    load=str(OUT), train_iters=ITERATIONS, iteration=0, consumed_train_samples=0, consumed_valid_samples=0,
    skipped_train_samples=0, eval_interval=4, do_valid="evaluate" in STYLE, exit_signal_handler="handler" in STYLE,
)  # fmt: skip
OWN: Any = megatron_lm.install(args, old="old" in STYLE) if "core" not in STYLE else None


def model_of(config: TransformerConfig, part: int | None) -> Any:
    torch.manual_seed(3)
    ends = {
        "pre_process": parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=part),
        "post_process": parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=part),
    }
    net: Any = GPTModel(
        config, get_gpt_layer_local_spec(config.num_moe_experts), vocab_size=32, max_sequence_length=LENGTH,
        share_embeddings_and_output_weights=config.pipeline_model_parallel_size > 1, vp_stage=part, **ends,
    ).to(DEVICE)  # fmt: skip
    net = Float16Module(config, net) if HALF else net
    shares = DistributedDataParallelConfig(use_distributed_optimizer="distributed" in STYLE)
    return DistributedDataParallel(config, shares, net, disable_bucketing=bool(part))


def shared_out() -> dict[str, Any]:
    """How the model is shared out between the ranks."""
    interleaved = "interleaved" in STYLE
    sizes = {
        "tensor_model_parallel_size": 2 if "tensor" in STYLE else 1,
        "pipeline_model_parallel_size": 2 if interleaved or "pipeline" in STYLE else 1,
        "virtual_pipeline_model_parallel_size": 2 if interleaved else None,
        "expert_model_parallel_size": 2 if "experts" in STYLE else 1,
    }
    parallel_state.initialize_model_parallel(**sizes)
    return {**sizes, "overlap_p2p_comm": interleaved, "batch_p2p_comm": not interleaved}


ROUTED = {
    "num_moe_experts": 4, "moe_router_topk": 2, "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.01, "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
    "moe_token_dispatcher_type": "allgather", "add_bias_linear": False,
}  # fmt: skip


def build() -> tuple[list[Any], Any, Any]:
    sizes = shared_out()
    tensor_parallel.model_parallel_cuda_manual_seed(7)
    config = TransformerConfig(
        num_layers=4 if "interleaved" in STYLE else 2, hidden_size=16, num_attention_heads=2,
        **sizes, **(ROUTED if "experts" in STYLE else {}),
        bf16=HALF == "bf16", fp16=HALF == "fp16",
        params_dtype=DTYPE, pipeline_dtype=DTYPE, autocast_dtype=DTYPE, use_cpu_initialization=ON_CPU,
        gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
    )  # fmt: skip
    model = [model_of(config, part) for part in ((0, 1) if "interleaved" in STYLE else (None,))]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-2, min_lr=1e-3, weight_decay=0.1,
            bf16=HALF == "bf16", fp16=HALF == "fp16", params_dtype=DTYPE,
            use_distributed_optimizer="distributed" in STYLE,
            initial_loss_scale=2.0 ** (26 if "skips" in STYLE else 20), loss_scale_window=3, hysteresis=1,
        ),
        model,
    )  # fmt: skip
    if "skips" in STYLE:
        config.grad_scale_func = optimizer.scale_loss  # as Megatron-LM's loop does
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=1e-2, min_lr=1e-3, lr_warmup_steps=8, lr_decay_steps=200,
        lr_decay_style="cosine", start_wd=0.1, end_wd=0.1, wd_incr_steps=200, wd_incr_style="constant",
    )  # fmt: skip
    return model, optimizer, scheduler


class Sampler:
    """As Megatron-LM's: this rank's micro batches behind the samples that were consumed."""

    def __init__(self, total: int, consumed: int) -> None:
        self.total, self.consumed = total, consumed

    def __iter__(self) -> Any:
        ranks, place = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
        for first in range(self.consumed + place * MICRO, self.total, MICRO * ranks):
            yield list(range(first, first + MICRO))


def batches(seed: int, consumed: int, parts: int) -> Any:
    """An iterator over the micro batches, for each part of the model."""
    rows = torch.randint(0, 32, (400, LENGTH), generator=torch.Generator().manual_seed(seed))
    sampler, workers = Sampler(len(rows), consumed), 1 if "workers" in STYLE else 0
    loaders = [torch.utils.data.DataLoader(rows, batch_sampler=sampler, num_workers=workers) for _ in range(parts)]
    return [RerunDataIterator(iter(loader)) for loader in loaders]


def forward_step(data: Any, net: Any) -> tuple[torch.Tensor, Any]:
    ids = next(data).to(DEVICE)
    positions = torch.arange(LENGTH, device=DEVICE).expand_as(ids)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=DEVICE).triu(1)
    losses = net(ids, positions, mask, labels=ids)
    return losses, lambda output: (output.mean(), judged(output.mean().detach()))


def run(data: Any, model: list[Any], micro: int, *, forward_only: bool) -> str:
    losses = get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=data, model=model, num_microbatches=micro, seq_length=LENGTH,
        micro_batch_size=MICRO, forward_only=forward_only,
    )  # fmt: skip
    return " ".join(one["loss"].item().hex() for one in losses) or "of another stage"


def judged(loss: torch.Tensor) -> dict[str, Any]:
    """As Megatron-LM's loss function with --check-for-spiky-loss."""
    if "rerun" not in STYLE:
        return {"loss": loss}  # Megatron-core 0.14 ends a job that doubts a result and has the machine switched off
    machine = get_rerun_state_machine()
    is_large = partial(machine.is_unexpectedly_large, threshold=0.9, context="loss", num_samples=5)
    machine.validate_result(result=loss, rejection_func=is_large, message="spiky", tolerance=0.0, fatal=False)
    return {"loss": loss}


def run_once_or_again(data: Any, model: list[Any], optimizer: Any) -> str:
    """As Megatron-LM's train_step(): an iteration whose losses are doubted is made again."""
    machine, losses, runs = get_rerun_state_machine(), "", 0
    while machine.should_run_forward_backward(data):
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses, runs = run(data, model, BATCH // MICRO, forward_only=False), runs + 1
    _, leaves, code = machine.should_checkpoint_and_exit()
    assert not leaves, code
    return f"{losses} {runs} {machine.current_iteration} {machine.large_value_counts} {machine.max_values}"


def train_step(iteration: int, data: Any, model: list[Any], optimizer: Any, scheduler: Any) -> None:
    losses = run_once_or_again(data, model, optimizer)
    finalize_model_grads(model)
    strike("step", iteration)
    optimizer.step()
    scheduler.step(increment=4)
    with (OUT / f"losses_{RANK}").open("a") as file:
        file.write(f"{iteration} {losses}\n")


def evaluate(iteration: int, data: Any, model: list[Any]) -> None:
    for chunk in model:
        chunk.eval()
    with torch.no_grad():
        losses = run(data, model, 2, forward_only=True)
    strike("evaluation", iteration)
    with (OUT / f"losses_{RANK}").open("a") as file:
        file.write(f"evaluation_{iteration} {losses}\n")
    args.consumed_valid_samples += 2 * MICRO * parallel_state.get_data_parallel_world_size()
    for chunk in model:
        chunk.train()


def train(model: list[Any], optimizer: Any, opt_param_scheduler: Any, data: Any, valid: Any) -> None:
    iteration = args.iteration
    num_floating_point_operations_so_far = args.num_floating_point_operations_so_far
    if STYLE.isdisjoint({"plain", "two"}):
        initialize_easyckpt(save_mem_interval=1, save_storage_interval=5, max_ckpt_num=5, log_file_path="./test.log")
    elif "two" in STYLE:
        initialize_easyckpt(save_mem_interval=2, save_storage_interval=5, max_ckpt_num=2)
    while iteration < args.train_iters:
        train_step(iteration, data, model, optimizer, opt_param_scheduler)
        if "early" in STYLE:
            save_checkpoint_if_needed(iteration, model, optimizer, opt_param_scheduler)
        iteration += 1
        args.consumed_train_samples += BATCH * parallel_state.get_data_parallel_world_size()
        num_floating_point_operations_so_far += 0.0 if "old" in STYLE else 100.0
        if "gathers" in STYLE:
            gather(OUT, iteration, model, optimizer, "made")
        if STYLE.isdisjoint({"plain", "late"}):
            save_checkpoint_if_needed(iteration, model, optimizer, opt_param_scheduler)
        if "evaluate" in STYLE and iteration % args.eval_interval == 0:
            evaluate(iteration, valid, model)
        if "late" in STYLE and "plain" not in STYLE:
            save_checkpoint_if_needed(iteration, model, optimizer, opt_param_scheduler)
        if "saves" in STYLE and RANK == 0 and iteration % 4 == 0:
            with in_own_save(iteration):
                OWN.save_checkpoint(
                    iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far
                )
        time.sleep(0.2 if "slow" in STYLE else 0)
    args.num_floating_point_operations_so_far = num_floating_point_operations_so_far


def load(model: list[Any], optimizer: Any, scheduler: Any) -> None:
    args.num_floating_point_operations_so_far = 0.0
    found: Any = (0, 0.0)
    if "plain" not in STYLE:
        found = load_checkpoint(model, optimizer, scheduler, concat="concat" in STYLE)
    elif "core" not in STYLE:
        found = OWN.load_checkpoint(model, optimizer, scheduler)
    if "old" in STYLE:
        args.iteration = found
    else:
        args.iteration, args.num_floating_point_operations_so_far = found
    if "core" in STYLE:  # nobody counts for it
        args.consumed_train_samples = args.iteration * BATCH * parallel_state.get_data_parallel_world_size()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    if not ON_CPU:
        torch.cuda.set_device(RANK)
    torch.distributed.init_process_group("gloo" if ON_CPU else "nccl")
    mode = RerunMode.VALIDATE_RESULTS if "rerun" in STYLE else RerunMode.DISABLED
    initialize_rerun_state_machine(mode=mode)
    model, optimizer, scheduler = build()
    load(model, optimizer, scheduler)
    if "gathers" in STYLE:
        gather(OUT, args.iteration, model, optimizer, "loaded")
    data = batches(1, args.consumed_train_samples, len(model))
    valid = batches(2, args.consumed_valid_samples, len(model))
    train(model, optimizer, scheduler, data, valid)
    digest = hashlib.sha256()
    tensors = [value for chunk in model for value in chunk.state_dict().values()]
    for tensor in [value for value in tensors if value is not None]:
        digest.update(tensor.float().cpu().numpy().tobytes())
    counted = (
        args.consumed_train_samples,
        args.consumed_valid_samples,
        args.num_floating_point_operations_so_far,
        scheduler.num_steps,
    )
    drawn = torch.rand(1).item().hex()
    (OUT / f"final_{RANK}").write_text(f"{digest.hexdigest()} {counted} {drawn}\n")
    torch.distributed.barrier()
    time.sleep(0.2)
    torch.distributed.destroy_process_group()


main()
