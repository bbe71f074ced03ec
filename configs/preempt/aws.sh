#!/bin/sh
# Will this EC2 spot instance be taken away? Ends with 0 for yes, 1 for no, 2 where the metadata service cannot be asked.
#
#     ftlaunch --preempt-when 'sh configs/preempt/aws.sh' train.py
#
# spot/instance-action is there about two minutes before the instance is stopped, and is 404 until then.
at="${PREEMPT_METADATA:-http://169.254.169.254}/latest"
token=$(curl -sf -m 3 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$at/api/token") || exit 2
code=$(curl -s -m 3 -o /dev/null -w '%{http_code}' -H "X-aws-ec2-metadata-token: $token" \
    "$at/meta-data/spot/instance-action") || exit 2
case $code in
    200) exit 0 ;;
    404) exit 1 ;;
    *) exit 2 ;;
esac
