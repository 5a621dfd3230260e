import socket
import time

import pytest

from seed_rl.grpc import addresses
from seed_rl.grpc.addresses import Address, Listeners, parse


@pytest.mark.parametrize(
    ("text", "address", "again"),
    [
        ("localhost:8686", Address("localhost", 8686), "localhost:8686"),
        ("10.0.0.1:1", Address("10.0.0.1", 1), "10.0.0.1:1"),
        ("[::1]:8686", Address("::1", 8686), "[::1]:8686"),
        ("unix:p", Address(path="p"), "unix:p"),
        ("unix:dir/p", Address(path="dir/p"), "unix:dir/p"),
        ("unix:/p", Address(path="/p"), "unix:/p"),
        ("unix:///p", Address(path="/p"), "unix:/p"),
    ],
)
def test_parse(text, address, again):
    """Case 119."""
    assert parse(text) == address
    assert str(address) == again


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no port"),
        ("localhost", "has no port"),
        (":8686", "has no host: wanted localhost:8686"),
        ("localhost:", "port '' is no number"),
        ("localhost:http", "port 'http' is no number"),
        ("localhost:65536", "port '65536' is no number from 0 to 65535"),
        ("::1:8686", "wanted host:port such as localhost:8686, [ipv6]:port"),
        ("[::x]:8686", "'::x' is no IPv6 address"),
        ("http://localhost:8686", "wanted host:port"),
        ("a b:1", "is no host"),
        ("unix:", "names no path"),
        ("unix:a#b", "gRPC misreads # in a path"),
        ("unix:/tmp/a%20b,c?", "gRPC misreads % , ? in a path"),
        ("unix://p", "wanted unix:path or unix:///absolute/path"),
        ("unix:/" + "p" * 120, "the path has 121 bytes, the system's limit for a socket is 107"),
    ],
)
def test_parse_says_what_is_wrong(text, words):
    """Case 119."""
    with pytest.raises(ValueError) as error:
        parse(text)
    assert words in str(error.value)


def test_the_limit_of_paths_is_the_systems(tmp_path, monkeypatch):
    """Case 119."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("p" * addresses.MAX_UNIX_PATH_BYTES)
    with socket.socket(socket.AF_UNIX) as server, pytest.raises(OSError, match="too long"):
        server.bind("q" * (addresses.MAX_UNIX_PATH_BYTES + 1))


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("localhost:1", True),
        ("127.0.0.1:1", True),
        ("127.1.2.3:1", True),
        ("0.0.0.0:1", True),
        ("[::1]:1", True),
        ("unix:p", True),
        ("10.0.0.1:1", False),
        ("learner:1", False),
        ("[fe80::1]:1", False),
    ],
)
def test_is_local(text, is_local):
    """Case 115."""
    assert parse(text).is_local == is_local


def test_check_free_leaves_files_alone_that_are_no_sockets(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(OSError, match="the path is no socket"):
        addresses.check_free(parse(f"unix:{path}"))
    assert path.read_text() == "mine"
    with pytest.raises(OSError, match="no folder"):
        addresses.check_free(parse(f"unix:{tmp_path}/none/p"))


def test_check_free_removes_a_dead_servers_socket_file_only(tmp_path):
    """Case 111."""
    path = tmp_path / "p"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        # The second connection finds the backlog full, and still a live server.
        for _ in range(2):
            with pytest.raises(OSError, match="address in use"):
                addresses.check_free(parse(f"unix:{path}"))
    assert path.exists()
    addresses.check_free(parse(f"unix:{path}"))
    assert not path.exists()


def test_check_free_names_hosts_that_are_not_this_machine():
    with pytest.raises(OSError, match=r"cannot serve at 192.0.2.1:8686"):
        addresses.check_free(parse("192.0.2.1:8686"))
    with pytest.raises(OSError, match=r"cannot serve at no-such-host.invalid:8686"):
        addresses.check_free(parse("no-such-host.invalid:8686"))


def test_check_free_looks_at_all_addresses_of_a_name():
    """Case 111: localhost is two addresses, and either may be in use."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(OSError, match="address in use"):
            addresses.check_free(parse(f"localhost:{server.getsockname()[1]}"))


def connect(address):
    with socket.create_connection((address.host, address.port), 5):
        pass


def test_listeners_have_one_port_for_all_addresses_of_a_name():
    for text in ("localhost:0", "[::]:0", "127.0.0.1:0"):
        listeners = Listeners(parse(text))
        port = listeners.address.port
        assert port
        assert {listener.getsockname()[1] for listener in listeners.sockets} == {port}
        families = {listener.family for listener in listeners.sockets}
        if text == "localhost:0":
            assert families == {place[0] for place in socket.getaddrinfo("localhost", 0)}
        connect(Address("localhost" if text == "[::]:0" else listeners.address.host, port))
        if text == "[::]:0":
            connect(Address("127.0.0.1", port))
        with pytest.raises(OSError, match="address in use"):
            Listeners(listeners.address)
        for listener in listeners.sockets:
            listener.close()


def test_a_socket_file_is_removed_by_its_own_server_only(tmp_path):
    """Case 111: a server that took the place of another keeps it."""
    address = parse(f"unix:{tmp_path}/p")
    first = Listeners(address)
    with pytest.raises(OSError, match="address in use"):
        Listeners(address)
    first.sockets[0].close()
    time.sleep(0.02)  # so much may pass between two times of files
    second = Listeners(address)
    first.remove()
    assert (tmp_path / "p").exists()
    second.sockets[0].close()
    second.remove()
    second.remove()
    assert not (tmp_path / "p").exists()
