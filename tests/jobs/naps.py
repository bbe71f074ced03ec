"""A rank without torch that sleeps: naps.py --out DIR SECONDS..., of each node, the last for all further ones.

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
time.sleep(seconds[min(node, len(seconds) - 1)])
