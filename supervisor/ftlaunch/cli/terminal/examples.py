"""Example command lines for the help of `ftlaunch` and of each `ftctl` command. A test parses each example."""

from __future__ import annotations

FTLAUNCH = (
    "ftlaunch --nproc-per-node 8 train.py --lr 3e-4",
    "ftlaunch job.yaml",
    "ftlaunch --dry-run job.yaml",
    "ftlaunch --check --max-restarts 10 --hang-timeout 10m -m my.training",
    "ftlaunch --nnodes 4 --rdzv-endpoint node0:29400 --nproc-per-node 8 train.py",
)

EXAMPLES = {
    "": ("ftctl jobs", "ftctl status gpt", "ftctl logs gpt -f", "ftctl stop gpt", "ftctl report gpt --html"),
    "attach": ("ftctl attach gpt",),
    "check": ("ftctl check", "ftctl check job.yaml --json"),
    "checkpoints": ("ftctl checkpoints", "ftctl checkpoints runs/gpt --json"),
    "checkpoints export": ("ftctl checkpoints gpt export 12000 weights --to hf",),
    "checkpoints prune": ("ftctl checkpoints gpt prune --keep 3 --keep-every 10000",),
    "checkpoints show": ("ftctl checkpoints gpt show 12000",),
    "checkpoints verify": ("ftctl checkpoints verify", "ftctl checkpoints /data/checkpoints verify 12000"),
    "clean": ("ftctl clean gpt", "ftctl clean --all"),
    "completion": ("ftctl completion bash",),
    "dashboard": ("ftctl dashboard gpt", "ftctl dashboard --dir runs --port 8080"),
    "drain": ("ftctl drain node-7", "ftctl drain 3 gpt"),
    "jobs": ("ftctl jobs", "ftctl jobs --running --json"),
    "kubernetes": ("ftctl kubernetes job.yaml --gpus 8 --nodes 4 --standby 1 > gpt.yaml",),
    "logs": ("ftctl logs gpt --rank 3", "ftctl logs -f", "ftctl logs gpt --attempt 0"),
    "nodes": ("ftctl nodes gpt", "ftctl nodes --json"),
    "nodes forgive": ("ftctl nodes gpt forgive node-7",),
    "nodes grow": ("ftctl nodes gpt grow",),
    "plan": (
        "ftctl plan --gpus 512 --mtbf-hours 50000 --state-size 80GiB --storage-bandwidth 2GB/s",
        "ftctl plan --gpus 512 --run gpt --simulate 200",
    ),
    "rehearse": ("ftctl rehearse --steps 30 job.yaml", "ftctl rehearse --nproc-per-node 2 train.py --lr 3e-4"),
    "recovery": ("ftctl recovery gpt", "ftctl recovery gpt --json"),
    "report": ("ftctl report gpt", "ftctl report runs --since 7d", "ftctl report runs --json"),
    "status": ("ftctl status", "ftctl status gpt --json"),
    "stop": ("ftctl stop gpt", "ftctl stop --timeout 10m"),
    "systemd": ("ftctl systemd job.yaml > gpt.service", "ftctl systemd job.yaml --user trainer"),
    "top": ("ftctl top gpt", "ftctl top --plain"),
}
