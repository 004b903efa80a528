#!/usr/bin/env bash
# Deletes the machines requested by run.sh, which cost money until then.
#
# v5litepod-16 (4 machines of 4 chips) in us-west4-a: $8.41 per hour at spot prices in us-west4 (price of 2026-11-22), at most $67.25 in 8 h.
# Written by `systole cloud`. See docs/guide/cloud.md for what was tested.
set -euo pipefail
cd "$(dirname "$0")"

NAME=systole-mlp
ZONE=us-west4-a

gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
