"""Train a small GPT, byte by byte, on the English text that comes with every Python.

The text is the help of Python itself (``pydoc_data.topics``), so there is nothing to download. Run it alone,
under torchrun, or under ftlaunch, which keeps it alive::

    python scripts/train_gpt.py
    torchrun --nproc-per-node 2 scripts/train_gpt.py
    ftlaunch --nproc-per-node 2 scripts/train_gpt.py

All that ftlaunch needs here are the import, ``ft.attach``, ``job.steps`` and, for evaluation, ``job.phase``.
The model follows nanoGPT (https://github.com/karpathy/nanoGPT): pre-norm blocks, learned positions.
"""

import argparse
import math
import os
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import ftlaunch_hooks as ft

VOCABULARY = 256  # every byte is a token


class Block(nn.Module):
    """Causal self-attention, then a multilayer perceptron, each added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of shape (batch, time, width) to one of the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, width of a head)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.drop(self.projection(attended.transpose(1, 2).reshape(batch, time, width)))
        return x + self.drop(self.mlp(self.norm_mlp(x)))


class GPT(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, block_size: int, layers: int, heads: int, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.block_size = block_size
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(block_size, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("projection.weight", "mlp.2.weight")):
                nn.init.zeros_(parameter)  # each block starts by adding nothing
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.06)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map bytes of shape (batch, time) to logits of shape (batch, time, 256) for the byte after each."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.token(tokens) + self.position(positions))
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def generate(self, prompt: bytes, count: int, generator: torch.Generator) -> str:
        """Continue `prompt` by `count` bytes, drawn with `generator` (on the CPU) at a temperature of 0.6."""
        self.eval()
        device = self.head.weight.device
        text = list(prompt)
        for _ in range(count):
            logits = self(torch.tensor([text[-self.block_size :]], device=device))[0, -1]
            chances = F.softmax(logits / 0.6, dim=-1).cpu()
            text.append(int(torch.multinomial(chances, 1, generator=generator)))
        return bytes(text).decode(errors="replace")


def load_text() -> tuple[Tensor, Tensor]:
    """Return the help texts as bytes: the first 90 % to train on, the rest to validate on."""
    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    data = torch.tensor(list(text), dtype=torch.long)
    split = len(data) * 9 // 10
    return data[:split], data[split:]


def random_batch(
    data: Tensor, args: argparse.Namespace, device: torch.device, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw random stretches of the text.

    Returns:
        The stretches, and the byte to predict after each of their bytes: two tensors of (batch_size, block_size).
    """
    starts = torch.randint(len(data) - args.block_size, (args.batch_size, 1), generator=generator)
    index = starts + torch.arange(args.block_size)
    return data[index].to(device), data[index + 1].to(device)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats a byte."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: Tensor, args: argparse.Namespace, device: torch.device) -> float:
    """Return the validation loss in nats a byte, on the same random batches every time, shared out over the ranks."""
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    generator = torch.Generator().manual_seed(args.seed + rank)  # of its own, so that training draws the same numbers
    count = 32 // world_size or 1
    model.eval()
    losses = []
    for _ in range(count):
        inputs, targets = random_batch(data, args, device, generator)
        losses.append(loss_of(model, inputs, targets))
    model.train()
    mean = torch.stack(losses).mean()
    if world_size > 1:
        dist.all_reduce(mean)
    return mean.item() / world_size


def start_process_group() -> tuple[int, int, torch.device]:
    """Join the other ranks if a launcher started this process; return rank, world size and device.

    Each rank uses a GPU and NCCL if the machine has enough GPUs, and otherwise the CPU and gloo.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_size:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        return 0, 1, device
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return dist.get_rank(), dist.get_world_size(), device


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Train a small GPT on Python's own help texts.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps in all")
    parser.add_argument("--batch-size", type=int, default=6, help="stretches a rank and step")
    parser.add_argument("--block-size", type=int, default=96, help="bytes of context")
    parser.add_argument("--layers", type=int, default=4, help="blocks")
    parser.add_argument("--heads", type=int, default=4, help="attention heads a block")
    parser.add_argument("--width", type=int, default=128, help="features a token")
    parser.add_argument("--lr", type=float, default=4e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=1, help="of everything random")
    parser.add_argument("--out", type=Path, default=Path("out/train_gpt"), help="where to write")
    parser.add_argument("--eval-every", type=int, default=100, help="steps between evaluations")
    parser.add_argument("--sample-bytes", type=int, default=300, help="length of the sample")
    return parser.parse_args()


def main() -> None:
    """Train, and on rank 0 write the losses, the final weights and a sample."""
    args = parse_args()
    rank, world_size, device = start_process_group()
    torch.manual_seed(args.seed + rank)  # each rank its own batches and dropout; DDP makes the weights equal
    train, val = load_text()

    model = GPT(args.block_size, args.layers, args.heads, args.width).to(device)
    replica = DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=0.1)
    warmup = min(50, args.steps // 10)

    def learning_rate(step: int) -> float:  # a linear warm-up, then half a cosine down to a tenth
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, args.steps - warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)
    job = ft.attach(model=replica, optimizer=optimizer, scheduler=scheduler)

    args.out.mkdir(parents=True, exist_ok=True)
    losses = (args.out / "loss.csv").open("a", buffering=1) if rank == 0 else None  # a line is one write
    bar = tqdm(total=args.steps, initial=job.step, disable=rank != 0, unit="step", mininterval=0.5)
    for step in job.steps(args.steps):
        inputs, targets = random_batch(train, args, device)
        loss = loss_of(replica, inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

        if losses:
            losses.write(f"{step},{loss.item():.6f},{loss.item().hex()}\n")
        job.step_done(loss.item())  # for the curve on the report page, and for `ftctl top`
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        bar.update()
        if (step + 1) % args.eval_every == 0 and step + 1 < args.steps:
            with job.phase("eval"):
                val_loss = evaluate(model, val, args, device)
            if rank == 0:
                bar.write(f"step {step + 1}: validation loss {val_loss:.3f}")
    bar.close()

    with job.phase("eval"):
        val_loss = evaluate(model, val, args, device)
    if rank == 0:
        save_file(model.state_dict(), args.out / "model.safetensors")
        generator = torch.Generator().manual_seed(args.seed)
        print(f"a sample:\n{model.generate(b'The ', args.sample_bytes, generator)}\n")
        print(f"step {args.steps}: final validation loss {val_loss:.4f} nats a byte; weights in {args.out}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
