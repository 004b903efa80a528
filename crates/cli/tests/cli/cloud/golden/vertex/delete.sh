#!/usr/bin/env bash
# Cancels the job that run.sh sent. It costs money until then, or until its time is over.
#
# v6e-16 (4 machines of 4 chips) in us-central1-b: $43.20 an hour on demand in us-central1 (price of 2026-11-22), at most $346 in 8 h; what Vertex AI itself adds is not in it.
# Written by `systole cloud`, with mine.toml. docs/guide/cloud.md says what of it was run, and what only checked.
set -euo pipefail
cd "$(dirname "$0")"

REGION=us-central1

gcloud ai custom-jobs cancel "$(<job.name)" --region="$REGION"
