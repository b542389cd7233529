"""The container engine of a host, by requests from that host: its version, images and registries, and the private network of a bed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.bed import container_requests, engine_kind, gpu_devices
from ...model import container, redaction
from ...model import container as names
from ...model.bed import BedSpec, ContainerSpec, HostSpec
from ...model.frozen import dataclass
from ...node.oslayer import container_engine, processes
from .. import owners

#: The range of private networks: a part of 10/8 without defaults of engines or clusters.
POOL = ipaddress.IPv4Network("10.212.0.0/14")
#: The first addresses of a network belong to its gateway and the engine.
FIRST = 10
#: podman starts other programs for its information, on a busy machine for seconds. Whether an engine responds at all is asked before.
CALL_S = 30.0
#: What engines say of a subnet that is in use, Docker and podman.
_TAKEN = ("overlap", "already used")


class EngineProblem(OSError):
    """The error of an engine, or why it cannot be used."""


class Engine:
    """The engine of a host. ``call``: performs an operation on the host (``Site.call``)."""

    def __init__(self, host: HostSpec, call: Callable[..., Any]) -> None:
        self._host = host
        self._call = call

    @property
    def is_local(self) -> bool:
        """Is it this machine's? On others preparation provides images."""
        return self._host.connection == "local"

    def identify(self) -> engine_kind.Engine:
        """Raises EngineProblem if the engine is too old, OSError if it does not respond."""
        version = self._get("/version")
        is_podman = names.is_podman(version)
        known = engine_kind.read(
            version,
            self._get(engine_kind.PODMAN_INFO) if is_podman else None,
            options="" if is_podman else str(self._get("/info").get("SecurityOptions")),
            can_update=not is_podman or self._can_update(),
        )
        if known.is_too_old:
            raise EngineProblem(
                f"container engine {known.text} is too old: install {known.name} {known.oldest} or newer"
            )
        return known

    def _request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(HTTP status, content, or the message of an error). Raises OSError."""
        about = {"engine": self._host.engine, "method": method, "path": path, "body": body, "limit_s": CALL_S}
        status, content = self._call("engine", CALL_S, **about)
        return int(status), content

    def _get(self, path: str) -> Any:
        """Raises EngineProblem, OSError."""
        status, content = self._request("GET", path)
        if status != 200:
            raise EngineProblem(f"{str(content)[:300]} (request {path})")
        return content

    def _can_update(self) -> bool:
        path = f"/containers/{engine_kind.NO_CONTAINER}/update"
        return engine_kind.knows_update(*self._request("POST", path, {"CpuShares": 2}))

    def images(self, wanted: Sequence[str]) -> Mapping[str, str]:
        """The id of each image that exists."""
        ids: Mapping[str, str] = self._call(
            "images", CALL_S, engine=self._host.engine, wanted=list(dict.fromkeys(wanted))
        )
        return ids

    def pull(self, image: str) -> None:
        """Let the engine of this machine pull an image. This user's login of its registry goes with the request.

        Raises EngineProblem.
        """
        from http.client import HTTPException

        from ...prepare import pull

        try:
            problem = pull.pull(self._host.engine, image, logins([image]).get(image, ""))
        except (OSError, HTTPException, ValueError) as error:
            problem = f"the engine broke off the pull: {error}"
        if problem:
            raise EngineProblem(explain_pull(image, problem))

    def network(self, bed: BedSpec, routes: Sequence[str]) -> str:
        """The subnet of the bed's private network, created if necessary. Raises EngineProblem."""
        if present := self._network(bed):
            return str(present["IPAM"]["Config"][0]["Subnet"])
        return self._make_network(bed, routes)

    def remove_network(self, bed: BedSpec) -> None:
        if present := self._network(bed):
            status, message = self._request("DELETE", f"/networks/{present['Id']}")
            if status >= 400:
                raise EngineProblem(message)

    def _network(self, bed: BedSpec) -> Mapping[str, Any]:
        """The network of the bed, empty without one. Raises EngineProblem if a network of another owner has the name."""
        name = names.network_name(bed.name)
        listed = self._get(container_engine.with_query("/networks", filters={"name": [name]}))
        present: Mapping[str, Any] = next((network for network in listed if network["Name"] == name), {})
        labels = present.get("Labels") or {}
        if present and labels.get(names.BED) != processes.bed_tag(bed.name, bed.hostdir):
            raise EngineProblem(_name_taken(bed, labels.get(names.OWNER, "")))
        return present

    def _make_network(self, bed: BedSpec, routes: Sequence[str]) -> str:
        refused = ""
        for subnet in _free(len(bed.all_nodes), routes):
            labels = {names.BED: processes.bed_tag(bed.name, bed.hostdir), names.OWNER: owners.text(bed)}
            ipam = {"Driver": "default", "Config": [{"Subnet": str(subnet)}]}
            about = {"Name": names.network_name(bed.name), "Driver": "bridge", "IPAM": ipam, "Labels": labels}
            status, content = self._request("POST", "/networks/create", about)
            if status < 400:
                return str(subnet)
            refused = str(content)
            if not any(word in refused.lower() for word in _TAKEN):
                break
        raise EngineProblem(f"no private network can be created: {refused or 'no free subnet'}")


def _name_taken(bed: BedSpec, owner: str) -> str:
    name = names.network_name(bed.name)
    if owner:
        return f"another bed {bed.name} exists on this engine, owner {owner}; end it there, or choose another ccbed_bed"
    return f"network {name} does not belong to this bed: docker network rm {name} if it is not in use, or choose another ccbed_bed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An engine that can have a bed's containers: what it is, the id of each image by name, the addresses of nodes."""

    engine: engine_kind.Engine
    images: Mapping[str, str]
    addresses: Mapping[str, str]


def ready(
    engine: Engine,
    bed: BedSpec,
    wanted: Sequence[ContainerSpec],
    routes: Callable[[], Sequence[str]],
    missing_error: Callable[[Sequence[str]], EngineProblem],
) -> Ready:
    """Check that the engine can run these containers, and create the network of the bed. Raises EngineProblem."""
    known = engine.identify()
    for spec in wanted:
        if reason := gpu_devices.version_problem(spec, known) or container_requests.limit_problem(spec, known):
            raise EngineProblem(reason)
    images = [spec.image for spec in wanted]
    image_ids = _provide(engine, images) if engine.is_local else engine.images(images)
    missing = [image for image in dict.fromkeys(images) if image not in image_ids]
    if missing:
        raise missing_error(missing)
    if bed.network == "private":
        subnet = ipaddress.IPv4Network(engine.network(bed, routes()))
        return Ready(engine=known, images=image_ids, addresses=addresses(bed, subnet.network_address))
    return Ready(engine=known, images=image_ids, addresses=addresses(bed))


def _provide(engine: Engine, images: Sequence[str]) -> Mapping[str, str]:
    """The ids of the images; those of registries are pulled if they are missing. Raises EngineProblem."""
    ids = engine.images(images)
    # ccbed's own images are built here: an image of a public registry with that name is a different one.
    pulled = [image for image in dict.fromkeys(images) if image not in ids and not image.startswith(names.OWN_IMAGES)]
    for image in pulled:
        engine.pull(image)
    return engine.images(images) if pulled else ids


def addresses(bed: BedSpec, network: ipaddress.IPv4Address | None = None) -> dict[str, str]:
    """Those in the networks of the hosts, or in a private network, by the number in a node's name: a node keeps its address."""
    if network is None:
        return {node.name: node.address for node in bed.all_nodes if node.address}
    return {node.name: str(network + FIRST + int(node.name[1:])) for node in bed.all_nodes}


def _free(nodes: int, routes: Sequence[str]) -> Iterator[ipaddress.IPv4Network]:
    """Subnets for so many nodes that no route of the host leads to."""
    taken = [ipaddress.IPv4Network(route, strict=False) for route in routes]
    prefix = 32 - (nodes + FIRST + 2).bit_length()
    for subnet in POOL.subnets(new_prefix=min(24, prefix)):
        if not any(subnet.overlaps(route) for route in taken):
            yield subnet


#: What engines say when a registry wants a login, or rejects the one it got. A registry also says so of an image that it
#: does not show to this user.
_LOGIN = re.compile(
    r"unauthorized|authentication required|no basic auth credentials|denied|incorrect username or password"
    r"|invalid username/password|\b40[13]\b",
    re.IGNORECASE,
)
_MISSING = re.compile(r"manifest unknown|not found|does not exist|name unknown", re.IGNORECASE)
_DOCKER_HUB = "docker.io"


def explain_pull(image: str, message: str) -> str:
    """The text for the user. ``message``: of the engine; it may quote an address with a password."""
    message = redaction.USERINFO.sub("…@", message.strip())
    registry = registry_of(image)
    if _LOGIN.search(message):
        login = "docker login" if registry == _DOCKER_HUB else f"docker login {registry}"
        return (
            f"image {image}: registry {registry} rejects this user's login, or has none of it ({message[:200]}); "
            f"on the controller: {login}"
        )
    if _MISSING.search(message):
        return f"image {image}: registry {registry} has no such image ({message[:200]}); correct ccbed_image"
    return f"image {image} is missing and cannot be pulled from {registry}: {message[:300]}; docker load it, or correct ccbed_image"


def registry_of(image: str) -> str:
    """The registry in an image's name: its first part, if that is an address or localhost."""
    first, slash, _ = container.split_image(image)[0].partition("/")
    return first if slash and (set(".:") & set(first) or first == "localhost") else _DOCKER_HUB


def logins(images: Iterable[str]) -> dict[str, str]:
    """Image -> the header X-Registry-Auth with this user's login, of the images whose registry has one in ~/.docker/config.json.

    Credential helpers and stores are asked. One that fails counts as no login: the registry then says that it wants one.
    """
    import docker.auth
    from docker.errors import DockerException

    try:
        config = docker.auth.load_config()
    except (DockerException, ValueError):
        return {}
    headers = {}
    for image in images:
        try:
            login = docker.auth.resolve_authconfig(config, registry_of(image))
        except (DockerException, ValueError, KeyError):
            continue
        if login:
            headers[image] = docker.auth.encode_header(login).decode()
    return headers
