#!/usr/bin/env bash
# Deletes the machines requested by run.sh, which cost money until then.
#
# 2*v4-256 (64 machines of 4 chips) in us-central2-b: $824 per hour on demand in us-central2 (price of 2025-03-03), at most $6595 in 8 h.
# Written by `systole cloud`. See docs/guide/cloud.md for what was tested.
set -euo pipefail
cd "$(dirname "$0")"

NAME=my-run
ZONE=us-central2-b

gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
