"""Where the learner is: 'host:port', '[ipv6]:port' or 'unix:path'."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import os
import socket
import stat
from typing import Any

# sun_path of Linux has 108 bytes, the last of which is 0.
MAX_UNIX_PATH_BYTES = 107

_BACKLOG = 1024
_PORT_ATTEMPTS = 20

_FORMS = "wanted host:port such as localhost:8686, [ipv6]:port such as [::1]:8686, or unix:path"


@dataclasses.dataclass(frozen=True)
class Address:
    """Either a host (without brackets) and a port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        """The address as users write it and as gRPC reads it."""
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether it surely means this machine, so that no proxy may stand in between."""
        if self.path or self.host == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return address.is_loopback or address.is_unspecified


def parse(text: str) -> Address:
    """The address that is meant by `text`. Raises ValueError that says what is wrong with it.

    unix:p is a relative path, unix:/p and unix:///p are the absolute path /p.
    """
    if text.startswith("unix:"):
        return Address(path=_unix_path(text))
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise ValueError(f"address {text!r} has no port: {_FORMS}")
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535):
        raise ValueError(f"address {text!r}: port {port_text!r} is no number from 0 to 65535")
    if not host:
        raise ValueError(
            f"address {text!r} has no host: wanted localhost:{port_text}, or "
            f"0.0.0.0:{port_text} for a learner that serves other machines"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise ValueError(f"address {text!r}: {host!r} is no IPv6 address") from error
    elif ":" in host:
        raise ValueError(f"address {text!r}: {_FORMS}")
    elif any(character.isspace() or character in "/[]@,%" for character in host):
        raise ValueError(f"address {text!r}: {host!r} is no host: {_FORMS}")
    return Address(host=host, port=int(port_text))


def check_free(address: Address) -> None:
    """Raises OSError where something listens on the address already, or it isn't this machine's.

    gRPC itself would take over the socket file of a live server, and be content with one of
    localhost's two addresses. A socket file that its server left behind is removed.
    """
    if address.path:
        _check_free_path(address)
    else:
        _check_free_port(address)


class Listeners:
    """Sockets that listen on an address: one for each address of its name, all with one port.

    Raises OSError as `check_free` does.
    """

    def __init__(self, address: Address) -> None:
        check_free(address)
        if address.path:
            self.sockets = [_listen_at_path(address)]
            self.address = address
            self._file = _identity(address.path)
        else:
            self.sockets, port = _listen_at_port(address)
            self.address = Address(address.host, port)
            self._file = None

    def detach(self) -> list[int]:
        """The file descriptors, which are the caller's from now on."""
        return [listener.detach() for listener in self.sockets]

    def remove(self) -> None:
        """Removes the socket file, unless another server has put its own there."""
        if self._file is not None and _identity(self.address.path) == self._file:
            os.unlink(self.address.path)
        self._file = None


def _unix_path(text: str) -> str:
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        if not path.startswith("///"):
            raise ValueError(f"address {text!r}: wanted unix:path or unix:///absolute/path")
        path = path[2:]
    if not path or "\0" in path:
        raise ValueError(f"address {text!r} names no path: wanted unix:path")
    misread = sorted(set(path) & set("#?%,"))
    if misread:
        raise ValueError(
            f"address {text!r}: gRPC misreads {' '.join(misread)} in a path: wanted one without"
        )
    size = len(os.fsencode(path))
    if size > MAX_UNIX_PATH_BYTES:
        raise ValueError(
            f"address {text!r}: the path has {size} bytes, the system's limit for a socket is "
            f"{MAX_UNIX_PATH_BYTES}: use a shorter one, such as unix:/tmp/seed_rl, or one relative "
            "to the working directory"
        )
    return path


def _check_free_path(address: Address) -> None:
    try:
        mode = os.stat(address.path).st_mode
    except FileNotFoundError:
        folder = os.path.dirname(address.path) or "."
        if not os.path.isdir(folder):
            raise OSError(errno.ENOENT, f"cannot serve at {address}: no folder {folder}") from None
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, f"cannot serve at {address}: the path is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
        except OSError:
            pass  # such as EAGAIN: there is a server, and its backlog is full
    raise _in_use(address)


def _check_free_port(address: Address) -> None:
    unavailable: OSError | None = None
    free = False
    for family, kind, protocol, _, place in _places(address):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
                free = True
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _in_use(address) from error
            unavailable = error  # such as ::1 on a machine without IPv6
    if not free:
        reason = unavailable.strerror if unavailable else "the name has no address"
        number = (unavailable and unavailable.errno) or errno.EADDRNOTAVAIL
        raise OSError(number, f"cannot serve at {address}: {reason}") from unavailable


def _identity(path: str) -> tuple[int, int, int] | None:
    # An inode number may be given to the next file at once.
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _listen_at_path(address: Address) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address.path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _in_use(address) from error
        raise OSError(error.errno, f"cannot serve at {address}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _listen_at_port(address: Address) -> tuple[list[socket.socket], int]:
    """The sockets and their port. Whoever asks for any port gets one that is free for all."""
    for _ in range(1 if address.port else _PORT_ATTEMPTS):
        listeners: list[socket.socket] = []
        port = address.port
        unavailable: OSError | None = None
        try:
            for family, kind, protocol, _, place in _places(address):
                listener = socket.socket(family, kind, protocol)
                listeners.append(listener)
                try:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        is_any = place[0] == "::"
                        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_any)
                    listener.bind((place[0], port, *place[2:]))
                    listener.listen(_BACKLOG)
                except OSError as error:
                    if error.errno == errno.EADDRINUSE:
                        raise
                    listeners.pop().close()
                    unavailable = error
                    continue
                listener.setblocking(False)
                port = listener.getsockname()[1]
        except OSError as error:
            for listener in listeners:
                listener.close()
            unavailable = error
            continue
        if listeners:
            return listeners, port
    assert unavailable is not None
    if unavailable.errno == errno.EADDRINUSE:
        raise _in_use(address) from unavailable
    raise OSError(
        unavailable.errno, f"cannot serve at {address}: {unavailable.strerror}"
    ) from unavailable


def _places(address: Address) -> list[Any]:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise OSError(
            errno.EADDRNOTAVAIL, f"cannot serve at {address}: {error.strerror}"
        ) from error
    return list(dict.fromkeys(found))  # a name may be listed twice


def _in_use(address: Address) -> OSError:
    return OSError(
        errno.EADDRINUSE,
        f"address in use: another program serves at {address}; stop it or choose another "
        "--server_address",
    )
