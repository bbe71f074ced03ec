#!/bin/sh
# Will this Azure VM (spot or scale set) be taken away? Ends with 0 for yes, 1 for no, 2 where the metadata service
# cannot be asked.
#
#     ftlaunch --preempt-when 'sh configs/preempt/azure.sh' train.py
#
# Preempt comes 30 seconds before an eviction. Terminate (a scale set's) and Redeploy end what runs on the VM, too; Freeze
# and Reboot are left out: add them to the pattern where they are to stop a job. The first question ever may take minutes.
at="${PREEMPT_METADATA:-http://169.254.169.254}/metadata/scheduledevents?api-version=2020-07-01"
events=$(curl -sf -m 8 -H 'Metadata: true' "$at") || exit 2
printf '%s' "$events" | grep -Eq '"EventType" *: *"(Preempt|Terminate|Redeploy)"'
