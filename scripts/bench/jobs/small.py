"""A small job: a process group, twenty steps with an all-reduce each, and rank 1 broken once as BENCH_FAULT says.

BENCH_FAULT is `death`, a SIGKILL, or `hang`. With BENCH_CLIENT the ranks report every step to NVIDIA's launcher, which
can only then see hangs.
"""

from notes import RANK, note, noted

note("line")

import os
import signal
import time

import torch
import torch.distributed as dist

STEPS = 20
AT = 5
fault = os.environ.get("BENCH_FAULT", "")
dist.init_process_group("gloo")
client = None
if "BENCH_CLIENT" in os.environ:
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
note("ready")

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    model(torch.randn(4, 8)).square().sum().backward()
    if RANK == 1 and fault == "death" and step == AT and not noted("dies"):
        note("dies", step)
        os.kill(os.getpid(), signal.SIGKILL)
    if RANK == 1 and fault == "hang" and step == AT and not noted("hangs"):
        note("hangs", step)
        time.sleep(1000)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    if client is not None:
        client.send_heartbeat()
    time.sleep(0.01)
if client is not None:
    client.shutdown_workload_monitoring()
dist.destroy_process_group()
time.sleep(0.2)  # torch 2.13 may abort when the interpreter ends right after the last collective
note("end")
