#!/usr/bin/env bash
# Shows what throttled buckets cost the others, after the proof of concept in the
# article on RocketMQ LiteTopic in Alibaba's Bailian gateway: 50 buckets, 50
# workers, 300 ms a message; none, then 5, then 40 of the buckets are throttled.
#
#   scripts/poc-isolation.sh [flags of "penstock bench isolation"]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make -s build
bin/penstock bench isolation "$@"
cat <<'TEXT'

How to read it. Every bucket's messages share one pool of 50 workers. A throttled
bucket is sent ten messages a second and its limit lets one through.

  suspend  The worker that gets a message over the limit answers Suspend: the broker
           holds that one bucket, the worker takes another message. The healthy
           buckets finish all that they are offered, and wait a few milliseconds.
  sleep    The worker keeps the message and sleeps until the limit lets it through.
           Sleeping workers add up until none is left: the healthy buckets get a
           fraction of what they are offered, and wait for seconds, though the pool
           does nothing but sleep.
TEXT
