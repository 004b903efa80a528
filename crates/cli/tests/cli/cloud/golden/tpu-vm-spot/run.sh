#!/usr/bin/env bash
# Trains on a Cloud TPU: requests the machines, copies the program, starts and watches it, deletes the machines.
#
# v5litepod-16 (4 machines of 4 chips) in us-west4-a: $8.41 per hour at spot prices in us-west4 (price of 2026-11-22), at most $67.25 in 8 h.
# Written by `systole cloud`. See docs/guide/cloud.md for what was tested.
#
# Requirements: gcloud (gcloud auth login; gcloud config set project PROJECT), the API (gcloud services enable
# tpu.googleapis.com) and a quota for these chips in us-west4-a. A guard on the machine deletes it if this shell is gone.
set -euo pipefail
cd "$(dirname "$0")"

NAME=systole-mlp
ZONE=us-west4-a
SLICES=1
MAX_HOURS=8
SPOT=yes
BUCKET=my-runs
MODEL_FILE=
COMMAND=(train mlp --device tpu --out runs/systole-mlp --strategy=data_parallel --epochs 3 --set fit.batch_size=256)

PROGRAM=${SYSTOLE:-$(command -v systole || true)}   # the program to copy, for Linux on x86-64: SYSTOLE=PATH
POLL=${POLL:-20}                                    # seconds between status checks
PROJECT=$(gcloud config get-value project 2>/dev/null || true)

say() { printf '[run.sh] %s\n' "$*" >&2; }
fail() { say "$*" && exit 1; }

[[ -x $PROGRAM ]] || fail "systole not found; set its path: SYSTOLE=PATH ./run.sh"
[[ -n $PROJECT && $PROJECT != "(unset)" ]] || fail "no project is set: gcloud config set project PROJECT"

# All machines of a slice share one name; several slices are numbered.
slice() { if ((SLICES > 1)); then echo "$NAME-$1"; else echo "$NAME"; fi; }
remote() { gcloud compute tpus tpu-vm ssh "$(slice "$1")" --zone="$ZONE" --worker="$2" --command="$3" --quiet; }
copy() { gcloud compute tpus tpu-vm scp "$@" --zone="$ZONE" --quiet; }

# Prints the state of a resource: GONE if it does not exist, UNKNOWN if gcloud does not answer. A missing answer must not
# restart the run.
state_of() {
    local answer
    if answer=$(gcloud compute tpus "$@" --zone="$ZONE" 2>&1); then
        echo "${answer##*$'\n'}"
    elif [[ $answer == *NOT_FOUND* ]]; then
        echo GONE
    else
        echo UNKNOWN
    fi
}
request_state() { state_of queued-resources describe "$NAME" --format='value(state.state)'; }

delete_all() {
    gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet ||
        say "the machines were not deleted and still cost money: ./delete.sh"
}

# Sends the request in queued-resource.json; it waits for at most a day.
request() {
    local url="https://tpu.googleapis.com/v2/projects/$PROJECT/locations/$ZONE/queuedResources?queuedResourceId=$NAME"
    sed "s|projects/PROJECT/|projects/$PROJECT/|" queued-resource.json |
        curl -fsS -X POST -H @<(printf 'Authorization: Bearer %s' "$(gcloud auth print-access-token)") \
            -H 'Content-Type: application/json' --data @- "$url" >&2
}

wait_for_machines() {
    local gone=0
    say "waiting for $NAME in $ZONE"
    while :; do
        case $(request_state) in
        ACTIVE) return 0 ;;
        FAILED | SUSPENDING | SUSPENDED | DELETING) return 1 ;;
        # A new request may not be visible at once.
        GONE) ((++gone < 5)) || return 1 ;;
        esac
        sleep "$POLL"
    done
}

# Copies the program, the model file and the run folder, and starts a guard that works without this shell.
prepare() {
    local at
    at=$(slice "$1")
    copy "$PROGRAM" "$at":systole --worker=all &&
        copy machine.sh ${MODEL_FILE:+"$MODEL_FILE"} "$at": --worker=all &&
        remote "$1" all "chmod +x systole && bash machine.sh prepare $BUCKET" &&
        if [[ -z $BUCKET && -d run ]]; then copy --recurse run "$at": --worker=0; fi &&
        remote "$1" 0 "bash machine.sh guard $NAME $ZONE $((DEADLINE - $(date +%s) + 900))"
}

# Every machine runs the same command; they discover each other, and the first one writes the results.
train() {
    local words variables=""
    printf -v words '%q ' "${COMMAND[@]}"
    if ((SLICES > 1)); then
        variables="MEGASCALE_COORDINATOR_ADDRESS=$COORDINATOR MEGASCALE_PORT=8081 MEGASCALE_NUM_SLICES=$SLICES MEGASCALE_SLICE_ID=$1 "
    fi
    remote "$1" all "${variables}bash machine.sh start $words"
}

begin() {
    local i
    wait_for_machines || return 1
    # MAX_HOURS covers all restarts of the run.
    ((DEADLINE > 0)) || DEADLINE=$(($(date +%s) + MAX_HOURS * 3600))
    for ((i = 0; i < SLICES; i++)); do prepare "$i" || return 1; done
    if ((SLICES > 1)); then
        COORDINATOR=$(gcloud compute tpus tpu-vm describe "$(slice 0)" --zone="$ZONE" \
            --format='value(networkEndpoints[0].ipAddress)') || return 1
    fi
    for ((i = 0; i < SLICES; i++)); do train "$i" || return 1; done
    STARTED=yes
}

machines_are_there() {
    local i
    for ((i = 0; i < SLICES; i++)); do
        case $(state_of tpu-vm describe "$(slice "$i")" --format='value(state)') in
        READY | UNKNOWN) ;;
        *) return 1 ;;
        esac
    done
}

# OUTCOME: running, done, failed, taken (machines were preempted or restarted) or over (MAX_HOURS).
ALONE=0
look() {
    local i told
    told=" $(for ((i = 0; i < SLICES; i++)); do
        remote "$i" all 'bash machine.sh state' 2>/dev/null || echo state=silent
    done | grep -o 'state=[a-z0-9]*' | sort -u | cut -d= -f2 | tr '\n' ' ')"
    OUTCOME=running
    case $told in
    *" lost "*) OUTCOME=taken ;;
    *" silent "* | " ") machines_are_there || OUTCOME=taken ;;
    *" running "*)
        # The other hosts end when they notice that one failed; stop them after 15 checks.
        if [[ $told =~ \ [1-9] ]] && ((++ALONE > 15)); then
            stop_all
            OUTCOME=failed
        fi
        ;;
    *\ [1-9]*) OUTCOME=failed ;;
    *) OUTCOME="done" ;;
    esac
    # On preemption the program may fail or be signalled before the cloud reports it.
    if [[ $OUTCOME == failed ]]; then
        sleep "$POLL"
        if [[ $SPOT == yes && $told =~ \ (130|143)\  ]] || ! machines_are_there; then OUTCOME=taken; fi
    fi
}

SEEN=0
show_log() {
    local text
    text=$(remote 0 0 "bash machine.sh log $((SEEN + 1))" 2>/dev/null) || return 0
    [[ -n $text ]] || return 0
    printf '%s\n' "$text"
    SEEN=$((SEEN + $(wc -l <<<"$text")))
}

stop_all() {
    local i
    for ((i = 0; i < SLICES; i++)); do remote "$i" all 'bash machine.sh stop' >&2 || true; done
}

watch_run() {
    OUTCOME=running
    while [[ $OUTCOME == running ]]; do
        sleep "$POLL"
        show_log
        if (($(date +%s) >= DEADLINE)); then
            say "the time limit of $MAX_HOURS hours is reached: saving and stopping the run"
            stop_all
            OUTCOME=over
        else
            look
        fi
    done
    show_log
}

# Copy a run that exists only on the machine. If that fails, keep the machine until its guard deletes it.
KEEP=no
finish() {
    [[ $STARTED == no || $OUTCOME != running ]] || stop_all
    if [[ $STARTED == yes && -z $BUCKET ]] && ! copy --recurse "$(slice 0)":run . --worker=0; then
        say "the run could not be copied: the machine is kept until its guard deletes it, $MAX_HOURS hours and 15 minutes after the start"
        say "copy it: gcloud compute tpus tpu-vm scp --recurse $(slice 0):run . --zone=$ZONE --worker=0; then ./delete.sh"
        KEEP=yes
    fi
    [[ $KEEP == yes ]] || delete_all
}

DEADLINE=0
STARTED=no
OUTCOME=taken
COORDINATOR=""
TRIES=0
case $(request_state) in
GONE) ;;
UNKNOWN) fail "gcloud does not answer; run: gcloud auth login, and gcloud services enable tpu.googleapis.com" ;;
*) fail "$NAME already exists; to delete it: ./delete.sh" ;;
esac
trap finish EXIT
while :; do
    request || fail "the request was rejected: check the quota for these chips in $ZONE"
    OUTCOME=taken
    if begin; then
        watch_run
    elif machines_are_there; then
        fail "the machines could not be prepared"
    elif [[ $SPOT == no ]] || ((++TRIES >= 5)); then
        KEEP=yes
        fail "no machines are available: see gcloud compute tpus queued-resources describe $NAME --zone=$ZONE, then run ./delete.sh"
    fi
    case $OUTCOME in
    "done") say "done" && exit 0 ;;
    over) fail "./run.sh resumes the run" ;;
    failed) fail "the run failed" ;;
    esac
    [[ $SPOT == yes ]] || fail "the machines were deleted or restarted; ./run.sh resumes from the last backup"
    if ((DEADLINE > 0 && $(date +%s) >= DEADLINE)); then fail "the time limit of $MAX_HOURS hours is reached"; fi
    say "the machines were preempted: requesting new ones to resume the run"
    delete_all
    STARTED=no
    SEEN=0
    ALONE=0
    until [[ $(request_state) == GONE ]]; do sleep "$POLL"; done
done
