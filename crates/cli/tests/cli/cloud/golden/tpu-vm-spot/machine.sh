#!/usr/bin/env bash
# Commands that run.sh executes on each machine: machine.sh prepare [BUCKET] | guard NAME ZONE SECONDS | start ARGS… | state | log LINE | stop
set -euo pipefail
cd "$(dirname "$0")"

GCSFUSE=${GCSFUSE:-3.11.1}

is_running() { [[ -e systole.pid ]] && kill -0 "$(<systole.pid)" 2>/dev/null; }

# Mounts the bucket as the folder `runs`.
mount_bucket() {
    if ! command -v gcsfuse >/dev/null; then
        local package="gcsfuse_${GCSFUSE}_amd64.deb"
        curl -fsSLO "https://github.com/GoogleCloudPlatform/gcsfuse/releases/download/v$GCSFUSE/$package"
        # A new machine may still be installing updates.
        sudo apt-get -o DPkg::Lock::Timeout=300 install -y "./$package"
    fi
    mkdir -p runs
    mountpoint -q runs || gcsfuse --implicit-dirs "$1" runs
}

verb=$1
shift
case $verb in
prepare)
    [[ -z ${1:-} ]] || mount_bucket "$1"
    ./systole setup tpu
    ./systole devices
    ;;
guard)
    # Deletes the machine after the time limit. Its service account must be allowed to do so; the default one is.
    # shellcheck disable=SC2016
    nohup bash -c 'sleep "$3" && gcloud compute tpus queued-resources delete "$1" --zone="$2" --force --quiet' \
        guard "$1" "$2" "$3" >guard.log 2>&1 </dev/null &
    ;;
start)
    if is_running; then exit 0; fi
    rm -f systole.code
    # In its own session, so that a lost connection does not end it.
    # shellcheck disable=SC2016
    setsid nohup bash -c '
        ./systole "$@" >>systole.log 2>&1 &
        echo $! >systole.pid
        code=0
        wait $! || code=$?
        echo "$code" >systole.code.new && mv systole.code.new systole.code
    ' start "$@" >/dev/null 2>&1 </dev/null &
    until [[ -s systole.pid || -e systole.code ]]; do sleep 0.1; done
    ;;
state)
    if [[ -e systole.code ]]; then
        echo "state=$(<systole.code)"
    elif is_running; then
        echo state=running
    else
        # It may have ended between the two checks; otherwise the machine was restarted.
        for ((i = 0; i < 20; i++)); do
            [[ ! -e systole.code ]] || break
            sleep 0.1
        done
        echo "state=$(cat systole.code 2>/dev/null || echo lost)"
    fi
    ;;
log) tail -n "+$1" systole.log ;;
stop)
    if ! is_running; then exit 0; fi
    kill -TERM "$(<systole.pid)"
    for ((i = 0; i < 120; i++)); do
        [[ ! -e systole.code ]] || exit 0
        sleep 0.5
    done
    ;;
*)
    echo "machine.sh: unknown command $verb" >&2
    exit 2
    ;;
esac
