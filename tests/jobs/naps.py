"""A rank without torch that sleeps: naps.py --out DIR SECONDS..., of each node, the last for all further ones.

It wakes earlier where there is a file DIR/awake.
FAIL="ATTEMPT NODE; ...": every rank of the node exits with 3 in that attempt, at once.
"""

import os
import sys
import time

node, attempt = int(os.environ["GROUP_RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
faults = [[int(word) for word in fault.split()] for fault in os.environ.get("FAIL", "").split(";") if fault.strip()]
if [attempt, node] in faults:
    sys.exit(3)
seconds = [float(word) for word in sys.argv[3:]]
end = time.monotonic() + seconds[min(node, len(seconds) - 1)]
while time.monotonic() < end and not os.path.exists(os.path.join(sys.argv[2], "awake")):
    time.sleep(0.1)
