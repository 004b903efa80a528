#!/usr/bin/env bash
# Submits the custom job to Vertex AI and shows its output.
#
# v5litepod-8 in europe-west4-b: $4.08 per hour at spot prices in europe-west4 (price of 2026-11-22), at most $32.65 in 8 h; the fee of Vertex AI is not included.
# Written by `systole cloud`. See docs/guide/cloud.md for what was tested.
#
# Requirements: gcloud, the API (gcloud services enable aiplatform.googleapis.com), a quota for training on these chips, and the
# image (Dockerfile).
set -euo pipefail
cd "$(dirname "$0")"

NAME=systole-mlp
REGION=europe-west4
BUCKET=my-runs
MODEL_FILE=

POLL=${POLL:-30}   # seconds between status checks
PROJECT=$(gcloud config get-value project 2>/dev/null || true)

say() { printf '[run.sh] %s\n' "$*" >&2; }
fail() { say "$*" && exit 1; }

[[ -n $PROJECT && $PROJECT != "(unset)" ]] || fail "no project is set: gcloud config set project PROJECT"
[[ -z $MODEL_FILE ]] || gcloud storage cp "$MODEL_FILE" "gs://$BUCKET/$NAME/$MODEL_FILE"

# Send the request in job.json.
answer=$(curl -fsS -X POST -H @<(printf 'Authorization: Bearer %s' "$(gcloud auth print-access-token)") \
    -H 'Content-Type: application/json' --data @job.json \
    "https://$REGION-aiplatform.googleapis.com/v1/projects/$PROJECT/locations/$REGION/customJobs")
job=$(sed -n 's/.*"name": *"\([^"]*\/customJobs\/[^"]*\)".*/\1/p' <<<"$answer" | head -n 1)
[[ -n $job ]] || fail "Vertex AI returned no job: $answer"
echo "$job" >job.name
say "the job runs independently of this shell: $job"

# Ctrl-C ends only the log output.
gcloud ai custom-jobs stream-logs "$job" --region="$REGION" || true
while :; do
    case $(gcloud ai custom-jobs describe "$job" --region="$REGION" --format='value(state)' || true) in
    JOB_STATE_SUCCEEDED) say "done: gcloud storage cp -r gs://$BUCKET/$NAME/run ." && exit 0 ;;
    JOB_STATE_FAILED | JOB_STATE_CANCELLED | JOB_STATE_EXPIRED)
        fail "the job ended before the run was complete; ./run.sh sends it again and resumes from gs://$BUCKET/$NAME/run"
        ;;
    esac
    sleep "$POLL"
done
