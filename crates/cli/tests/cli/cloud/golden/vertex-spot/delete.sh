#!/usr/bin/env bash
# Cancels the job that run.sh sent. It costs money until then, or until its time is over.
#
# v5litepod-8 in europe-west4-b: $4.08 an hour at spot prices in europe-west4 (price of 2026-11-22), at most $32.65 in 8 h; what Vertex AI itself adds is not in it.
# Written by `systole cloud`. docs/guide/cloud.md says what of it was run, and what only checked.
set -euo pipefail
cd "$(dirname "$0")"

REGION=europe-west4

gcloud ai custom-jobs cancel "$(<job.name)" --region="$REGION"
