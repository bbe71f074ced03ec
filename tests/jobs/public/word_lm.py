"""A recurrent language model that carries its hidden state from batch to batch, and steps without an optimizer."""

import math

import torch
from kit import note, reach, report
from torch import nn

import ftlaunch_hooks as ft  # ftlaunch

EPOCHS, BPTT, BATCH, TOKENS = 4, 5, 4, 12


class Model(nn.Module):
    """Embedding, LSTM, and a layer over the tokens."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.2)
        self.encoder, self.rnn, self.decoder = nn.Embedding(TOKENS, 8), nn.LSTM(8, 16, 2), nn.Linear(16, TOKENS)

    def forward(self, tokens, hidden):
        out, hidden = self.rnn(self.dropout(self.encoder(tokens)), hidden)
        return self.decoder(self.dropout(out)).view(-1, TOKENS), hidden

    def init_hidden(self, size):
        """Zeros."""
        weight = next(self.parameters())
        return weight.new_zeros(2, size, 16), weight.new_zeros(2, size, 16)


def batchify(data, size):
    """Columns of equal length."""
    count = data.size(0) // size
    return data.narrow(0, 0, count * size).view(size, -1).t().contiguous()


def repackage_hidden(hidden):
    """Detach hidden states from the graph that made them."""
    return hidden.detach() if isinstance(hidden, torch.Tensor) else tuple(repackage_hidden(one) for one in hidden)


def get_batch(source, begin):
    """A stretch, and what follows each of its tokens."""
    length = min(BPTT, len(source) - 1 - begin)
    return source[begin : begin + length], source[begin + 1 : begin + 1 + length].view(-1)


def evaluate(source):
    """The loss on other data."""
    model.eval()
    total, hidden = 0.0, model.init_hidden(BATCH)
    with torch.no_grad():
        for begin in range(0, source.size(0) - 1, BPTT):
            data, targets = get_batch(source, begin)
            out, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total += len(data) * criterion(out, targets).item()
    return total / (len(source) - 1)


def train():
    """One pass over the data."""
    model.train()
    total = 0.0
    hidden = model.init_hidden(BATCH)
    begins = range(0, train_data.size(0) - 1, BPTT)
    for batch, begin in enumerate(job.batches(torch.utils.data.DataLoader(begins, batch_size=None))):  # ftlaunch
        data, targets = get_batch(train_data, begin)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        out, hidden = model(data, hidden)
        loss = criterion(out, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
        if batch % 3 == 0 and batch > 0:
            print(f"epoch {epoch}, {batch} batches: perplexity {math.exp(total / 3):.2f}")
            total = 0
        note(epoch, batch, loss)
        reach("batch", epoch, batch)


torch.manual_seed(1111)
train_data = batchify(torch.randint(TOKENS, (160,)), BATCH)
validation_data = batchify(torch.randint(TOKENS, (60,)), BATCH)
model = Model()
criterion = nn.CrossEntropyLoss()
lr, best_loss = 2.0, None
job = ft.attach(model=model)  # ftlaunch
for epoch in job.epochs(EPOCHS):  # ftlaunch
    train()
    reach("validation", epoch)
    val_loss = evaluate(validation_data)
    if not best_loss or val_loss < best_loss:
        best_loss = val_loss
    else:
        lr /= 4.0
    note(epoch, -1, lr * val_loss)
    reach("end", epoch)
report(model, lr, best_loss)
