# Packages of Debian and Ubuntu while the system installs others in the background, as a new machine does just after its start.
# .ci/setup reads this file, and the playbooks send it to hosts.

# apt_get WORDS...: as apt-get, without questions and output. It waits up to APT_WAIT_S seconds (600) for the locks of other package
# managers, completes an installation that was interrupted, and downloads three times. On failure apt's errors are on stderr.
apt_get() {
    _end=$(($(date +%s) + ${APT_WAIT_S:-600}))
    _downloads=3
    while :; do
        _errors=$(LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a apt-get -qq -y \
            -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
            -o Acquire::Retries=3 -o APT::Update::Error-Mode=any "$@" 2>&1 >/dev/null </dev/null) && return 0
        case $_errors in
            *"dpkg was interrupted"*)
                DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a dpkg --force-confdef --force-confold --configure -a \
                    >/dev/null 2>&1 </dev/null || true
                ;;
            *"are you root"* | *"ermission denied"* | *"ead-only file system"*) break ;;
            *"get lock"* | *"nable to lock"* | *"nable to acquire"* | *"is another process using it"*) ;;
            *"ailed to fetch"* | *"ailed to download"* | *"emporary failure"* | *"index files failed"*)
                _downloads=$((_downloads - 1))
                [ "$_downloads" -gt 0 ] || break
                ;;
            *) break ;;
        esac
        [ "$(date +%s)" -lt "$_end" ] || break
        sleep 1
    done
    printf '%s\n' "$_errors" >&2
    return 1
}

# apt_install PACKAGE...: from new lists; where they cannot be had, from those that are there.
apt_install() {
    apt_get update || true
    apt_get install --no-install-recommends "$@"
}
