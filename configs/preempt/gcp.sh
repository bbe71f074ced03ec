#!/bin/sh
# Will this Compute Engine VM (spot or preemptible) be taken away? Ends with 0 for yes, 1 for no, 2 where the metadata
# server cannot be asked.
#
#     ftlaunch --preempt-when 'sh configs/preempt/gcp.sh' --preempt-every 1s train.py
#
# The VM is stopped 30 seconds after the notice. With wait_for_change the server answers at the change, or after
# timeout_sec; a change that has come between two questions is told by the plain question before.
at="${PREEMPT_METADATA:-http://metadata.google.internal}/computeMetadata/v1/instance/preempted"
ask() {
    curl -sf -m 8 -H 'Metadata-Flavor: Google' "$1"
}
said=$(ask "$at") || exit 2
[ "$said" = TRUE ] || said=$(ask "$at?wait_for_change=true&timeout_sec=4") || exit 2
[ "$said" = TRUE ]
