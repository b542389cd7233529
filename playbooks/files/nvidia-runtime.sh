# Registers the runtime of NVIDIA's container toolkit with Docker, restarts the engine, which looks for it only when it
# starts, and proves that it lists it. An engine whose containers would end is left as it is. With the argument "check", only
# this is found out.
fail() { echo "$1; fix: $2" >&2; exit 1; }
running=$(docker info --format '{{.ContainersRunning}}')
if [ "$running" != 0 ] && [ "$(docker info --format '{{.LiveRestoreEnabled}}')" != true ]; then
  fail "the engine must restart to find NVIDIA's toolkit, which would end its $running running containers" \
    "end them there (docker stop) when they may end, then ccbed up"
fi
[ "$1" != check ] || exit 0
nvidia-ctk runtime configure --runtime=docker
if [ -d /run/systemd/system ]; then systemctl restart docker; else service docker restart; fi
for _ in 1 2 3 4 5 6 7 8 9 10; do
  docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q '"nvidia"' && exit 0
  sleep 1
done
fail "docker info does not list the runtime nvidia after a restart of the engine" "see journalctl -u docker and /etc/docker/daemon.json"
