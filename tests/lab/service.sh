#!/bin/sh
# Services of one lab host, run on that host: service engine|sshd start|stop|kill|status
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
here=/run/ccbed-lab

case "${1:-}" in
    engine) pidfile=/run/engine.pid ;;
    sshd) pidfile=/run/sshd.pid ;;
    *) echo "usage: service engine|sshd start|stop|kill|status" >&2; exit 2 ;;
esac
service=$1

alive() { [ -s "$pidfile" ] && kill -0 "$(cat "$pidfile")" 2>/dev/null; }

gone() {
    tries=${1}0
    while alive; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.1
    done
}

start() {
    alive && return 0
    rm -f "$pidfile"
    if [ "$service" = sshd ]; then
        /usr/sbin/sshd -f "$here/sshd_config" -E /run/sshd.log
        return
    fi
    rm -f /run/docker.sock /run/docker.pid
    setsid dockerd --bridge=none --iptables=false --ip6tables=false --log-level=warn --host=unix:///run/docker.sock \
        --cgroup-parent="$(cat "$here/cgroup")" >>/run/dockerd.log 2>&1 </dev/null &
    echo $! >"$pidfile"
}

stop() {
    alive || return 0
    kill "$(cat "$pidfile")"
    gone 20 || { kill -9 "$(cat "$pidfile")"; gone 5; }
}

# Ends the sessions of sshd. They are processes of this host only, and go on without their listener.
sessions() {
    for folder in /proc/[0-9]*; do
        case "$(cat "$folder/comm" 2>/dev/null)" in
            sshd | sshd-session) kill -9 "${folder#/proc/}" 2>/dev/null ;;
        esac
    done
    return 0
}

case "${2:-}" in
    start) start ;;
    stop) stop ;;
    kill)
        alive && kill -9 "$(cat "$pidfile")"
        gone 5
        [ "$service" != sshd ] || sessions ;;
    status) alive && echo up || echo down ;;
    *) echo "usage: service engine|sshd start|stop|kill|status" >&2; exit 2 ;;
esac
