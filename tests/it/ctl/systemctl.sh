# A stand-in for `systemctl --user` and one service, ollmd. It logs its arguments, and answers with the exit codes and texts of
# systemd 252. It starts and stops real daemons, but without a socket of its own.
echo "$*" >>"$HOME/systemctl.log"
units=$HOME/.config/systemd/user
running=$HOME/.ollm/daemon.json
pid() { if [ -e "$running" ]; then cat "$HOME/service.pid" 2>/dev/null || echo 0; else echo 0; fi; }
has_failed() { echo "$1" >&2 && exit "$2"; }

case "$*" in
'--user daemon-reload')
    if [ -e "$units/ollmd.service" ]; then : >"$HOME/loaded"; else rm -f "$HOME/loaded"; fi
    ;;
'--user enable ollmd.service ollmd.socket')
    for link in default.target.wants/ollmd.service sockets.target.wants/ollmd.socket; do
        [ -e "$units/${link#*/}" ] ||
            has_failed "Failed to enable unit: Unit file ${link#*/} does not exist." 1
        mkdir -p "$units/${link%/*}"
        ln -sf "$units/${link#*/}" "$units/$link"
    done
    ;;
'--user start ollmd.service')
    [ -e "$HOME/loaded" ] || has_failed 'Failed to start ollmd.service: Unit ollmd.service not found.' 5
    if [ "$(pid)" = 0 ]; then
        command=$(sed -n 's/^ExecStart=//p' "$units/ollmd.service")
        [ -x "${command%% *}" ] || has_failed 'Job for ollmd.service failed.' 1
        $command --detach >/dev/null 2>&1 &
        echo $! >"$HOME/service.pid"
        until [ -e "$running" ]; do sleep 0.01; done
    fi
    ;;
'--user stop ollmd.socket')
    [ -e "$HOME/loaded" ] || has_failed 'Failed to stop ollmd.socket: Unit ollmd.socket not loaded.' 5
    ;;
'--user disable --now ollmd.service ollmd.socket')
    [ -e "$units/ollmd.service" ] ||
        has_failed 'Failed to disable unit: Unit file ollmd.service does not exist.' 1
    rm -f "$units/default.target.wants/ollmd.service" "$units/sockets.target.wants/ollmd.socket"
    if [ "$(pid)" != 0 ]; then
        kill "$(pid)"
        while [ -e "$running" ]; do sleep 0.01; done
    fi
    ;;
'--user reset-failed ollmd.service ollmd.socket')
    has_failed 'Failed to reset failed state of unit ollmd.service: Unit ollmd.service not loaded.' 1
    ;;
'--user show -p LoadState,ActiveState,UnitFileState,MainPID,NeedDaemonReload ollmd.service')
    if [ "$(pid)" = 0 ]; then state=inactive; else state=active; fi
    if [ -e "$units/default.target.wants/ollmd.service" ]; then enabled=enabled; else enabled=disabled; fi
    if [ -e "$HOME/loaded" ]; then loaded=loaded; else loaded=not-found enabled=''; fi
    printf 'MainPID=%s\nLoadState=%s\nActiveState=%s\n' "$(pid)" "$loaded" "$state"
    printf 'UnitFileState=%s\nNeedDaemonReload=no\n' "$enabled"
    ;;
*)
    has_failed "Unknown command verb $*." 1
    ;;
esac
