"""A GPT without functions around its loop: batches drawn from a file in memory, each fetched a step ahead."""

import math

import numpy as np
import torch
from kit import OUT, note, reach, report
from torch import nn

import ftlaunch_hooks as ft  # ftlaunch

max_iters, eval_interval, eval_iters, accumulation = 24, 6, 3, 2
batch_size, block_size, learning_rate, min_lr, warmup_iters = 4, 8, 1e-2, 1e-3, 4
torch.manual_seed(1337)
path = OUT / "train.bin"
np.random.default_rng(0).integers(0, 16, 2000).astype(np.uint16).tofile(path)


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.feed = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(0.1))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return x + self.feed(x)


class Gpt(nn.Module):
    """One block, and an output layer that is the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.block, self.out = nn.Embedding(16, 16), Block(), nn.Linear(16, 16, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x, target):
        logits = self.out(self.block(self.embedding(x)))
        return logits, nn.functional.cross_entropy(logits.view(-1, 16), target.view(-1))


def get_batch(split):
    data = np.memmap(path, dtype=np.uint16, mode="r")
    data = data[:1800] if split == "train" else data[1800:]
    places = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in places])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in places])
    return x, y


@torch.no_grad()
def estimate_loss():
    found = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            _, losses[k] = model(*get_batch(split))
        found[split] = losses.mean()
    model.train()
    return found


def get_lr(number):
    if number < warmup_iters:
        return learning_rate * (number + 1) / warmup_iters
    ratio = (number - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


iter_num, best_val_loss = 0, 1e9
model = Gpt()
scaler = torch.amp.GradScaler("cuda", enabled=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99))
X, Y = get_batch("train")
job = ft.attach(model=model, optimizer=optimizer, scaler=scaler)  # ftlaunch
for iter_num in job.steps(max_iters):  # ftlaunch
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        reach("validation", iter_num)
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
        note(iter_num, -1, best_val_loss)
    for micro_step in range(accumulation):
        logits, loss = model(X, Y)
        loss = loss / accumulation
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
        reach("batch", iter_num, micro_step)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    note(iter_num, 0, loss)
    reach("end", iter_num)
report(model, optimizer, X, Y, best_val_loss)
