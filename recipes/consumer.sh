#!/bin/sh
# Run a command for each job of a queue, over HTTP. Needs curl and jq.
#
#     recipes/consumer.sh mail ./send.sh --verbose
#
# The command reads the item as JSON on its standard input. $FDBQ_ID is the id of the item and
# $FDBQ_ATTEMPT the number of the attempt. If the command prints one JSON value, that is the result of
# the job. For each line {"queue": ..., "item": ...} that it appends to the file $FDBQ_THEN, a job is
# pushed in the transaction that ends this one. If it fails, the job is tried again later, with the
# exit code and the end of standard error as the reason.
#
# From the environment: FDBQ_URL, by default http://127.0.0.1:8080; FDBQ_TOKEN, if the server needs
# one; FDBQ_LEASE, in whole seconds, by default 30.
#
# SIGTERM and SIGINT let the running command end; a second signal ends it. The first must reach only this
# process, so a systemd unit needs KillMode=mixed. jq before 1.7 rounds integers beyond 2^53.
set -u

if [ $# -lt 2 ]; then
    echo "usage: consumer.sh QUEUE COMMAND [ARGUMENT...]" >&2
    exit 2
fi
lease=${FDBQ_LEASE:-30}
route=${FDBQ_URL:-http://127.0.0.1:8080}/v1/queues/$(jq -nr --arg name "$1" '$name | @uri') || exit
shift

stopping='' # not empty after a signal
idle=''     # not empty while a signal may end the child that this shell waits for
child='' job='' keeper=''

umask 077
dir=$(mktemp -d) || exit
trap 'kill $child $job $keeper 2>/dev/null; rm -rf "$dir"' EXIT
trap stop TERM INT

stop() {
    trap 'exit 130' TERM INT
    stopping=yes
    end_idle_child
}

# End the child if nothing is lost by that. Just after the fork it still has the trap of this shell.
end_idle_child() {
    [ -z "$idle" ] || { sleep 1 && kill "$child" 2>/dev/null; }
}

say() { echo "consumer.sh: $*" >&2; }

# Ctrl-C reaches every process in the foreground. It must not end jq.
jq() (
    trap '' INT
    exec jq "$@"
)

# Wait for a child until it has ended: a signal to this shell ends `wait`, but not the child.
await() {
    child=$1
    [ -z "$stopping" ] || end_idle_child # the signal came just before
    while :; do
        wait "$child" 2>/dev/null # dash would say "Terminated"
        code=$?
        if [ "$code" -le 128 ] || ! kill -0 "$child" 2>/dev/null; then
            child=''
            return "$code"
        fi
    done
}

# Send $dir/ACTION.request. The answer is in $dir/ACTION.answer, its code in $status: 000 if there is none.
request() {
    : >"$dir/$1.headers"
    : >"$dir/$1.answer"
    # The token is read from a file, because `ps` shows arguments.
    curl --silent --max-time 60 --header "@$dir/headers" --data-binary "@$dir/$1.request" \
        --dump-header "$dir/$1.headers" --output "$dir/$1.answer" --write-out '%{http_code}' \
        "$route/$1" >"$dir/$1.status" &
    if await $!; then status=$(cat "$dir/$1.status"); else status=000; fi
}

# Sleep before ACTION is tried again: twice as long each time up to 30 s, and at least Retry-After.
back_off() {
    pause=$(tr '[:upper:]' '[:lower:]' <"$dir/$1.headers" | sed -n 's/^retry-after: *\([0-9]\{1,6\}\).*/\1/p')
    [ "${pause:-0}" -gt "$delay" ] || pause=$delay
    say "$1: $(reason "$1"); trying again in $pause s"
    sleep "$pause" >/dev/null 2>&1 &
    await $!
    delay=$((delay < 15 ? 2 * delay : 30))
}

# Say why ACTION failed.
reason() {
    detail=$(jq -r '.detail // empty' "$dir/$1.answer" 2>/dev/null)
    echo "${detail:-no answer of fdbq serve} (status $status)"
}

# End the claim by ack or nack. Return 1 if the server refuses that for good.
finish() {
    delay=1
    while :; do
        request "$1"
        case $status in
        2??) return 0 ;;
        409)
            # The first answer to a repeated request may have been lost.
            say "$1: the claim is over: it was ended before, or the lease was lost"
            return 0
            ;;
        000 | 408 | 429 | 5??) back_off "$1" ;;
        *)
            say "$1: $(reason "$1")"
            return 1
            ;;
        esac
    done
}

# Extend the lease three times in its duration, until this process is killed. End the job if it is lost.
keep_lease() {
    trap 'kill $child 2>/dev/null; exit' TERM
    third=$((lease > 3 ? lease / 3 : 1))
    pause=$third
    while :; do
        sleep "$pause" >/dev/null 2>&1 &
        await $!
        request extend
        case $status in
        2??) pause=$third ;;
        409)
            : >"$dir/lost"
            kill "$job" 2>/dev/null
            exit
            ;;
        *) pause=1 ;;
        esac
    done
}

# Run the command on the claim in $dir/claim, and end the claim.
work() {
    jq -c .item "$dir/claim" >"$dir/item"
    FDBQ_ID=$(jq -r .id "$dir/claim")
    FDBQ_ATTEMPT=$(jq -r .attempt "$dir/claim")
    FDBQ_THEN=$dir/then
    export FDBQ_ID FDBQ_ATTEMPT FDBQ_THEN
    : >"$dir/then"
    rm -f "$dir/lost"
    jq --argjson lease "$lease" '{token, lease: $lease}' "$dir/claim" >"$dir/extend.request"

    # In the background the command does not get Ctrl-C.
    "$@" <"$dir/item" >"$dir/output" 2>"$dir/errors" &
    job=$!
    keep_lease &
    keeper=$!
    await "$job"
    exit_code=$code
    job=''
    cat "$dir/errors" >&2
    if [ ! -e "$dir/lost" ]; then
        end_claim
    else
        say "$FDBQ_ID: the lease was lost; another worker may have the job"
    fi
    kill "$keeper" 2>/dev/null # only now: to acknowledge may take some tries
    await "$keeper"
    keeper=''
}

end_claim() {
    failure="exit code $exit_code"
    if [ "$exit_code" = 0 ]; then
        jq -s 'if length == 1 then {result: .[0]} else {} end' "$dir/output" >"$dir/result" 2>/dev/null ||
            echo '{}' >"$dir/result" # the output is not JSON
        if jq -s --slurpfile claim "$dir/claim" --slurpfile result "$dir/result" \
            '{token: $claim[0].token, then: .} + $result[0]' "$dir/then" >"$dir/ack.request"; then
            if finish ack; then return; fi
            failure="ack: $(reason ack)"
        else
            failure="the lines in \$FDBQ_THEN are not JSON"
        fi
    fi
    tail -c 4000 "$dir/errors" |
        jq -Rs --arg failure "$failure" --slurpfile claim "$dir/claim" \
            '{token: $claim[0].token, error: "\($failure)\n\(.)" | rtrimstr("\n")}' >"$dir/nack.request"
    finish nack
}

printf 'Content-Type: application/json\n' >"$dir/headers"
[ -z "${FDBQ_TOKEN:-}" ] || printf 'Authorization: Bearer %s\n' "$FDBQ_TOKEN" >>"$dir/headers"
jq -n --argjson lease "$lease" --arg client "$(uname -n):$$" \
    '{wait: 20, lease: $lease, client: $client}' >"$dir/claim.request" || exit

delay=1
while [ -z "$stopping" ]; do
    idle=yes
    request claim
    idle=''
    # A part of an answer is not JSON, and not a claim.
    jq '.claims[0] // empty' "$dir/claim.answer" >"$dir/claim" 2>/dev/null
    if [ -s "$dir/claim" ]; then
        delay=1
        if [ -z "$stopping" ]; then
            work "$@"
            delay=1
        else # the claim came together with the signal, and the job has not begun
            jq '{token}' "$dir/claim" >"$dir/release.request"
            request release
        fi
    elif [ -z "$stopping" ]; then
        case $status in
        200) delay=1 ;; # no job
        # The first push creates a queue, so 404 may end.
        000 | 404 | 408 | 409 | 429 | 5??)
            idle=yes
            back_off claim
            idle=''
            ;;
        *)
            say "claim: $(reason claim)"
            exit 1
            ;;
        esac
    fi
done
