"""Where servers listen and how clients find them."""

import socket

import pytest


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:0", "[::1]:0", "0.0.0.0:0"])
def test_tcp_addresses(make_server, make_learner, make_client, rows, address):
    """Cases 23 and 119."""
    if address.startswith("[") and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    server = make_server(address)
    assert server.address.rpartition(":")[0] == address.rpartition(":")[0]
    assert not server.address.endswith(":0")
    make_learner(server)
    make_client(server, 3, 1).act(rows([3]))


@pytest.mark.parametrize("form", ["unix:p", "unix:dir/p", "unix:{}/p", "unix://{}/p"])
def test_unix_addresses(make_server, make_learner, make_client, rows, tmp_path, monkeypatch, form):
    """Case 119."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    server = make_server(form.format(tmp_path))
    make_learner(server)
    make_client(server, 3, 1).act(rows([3]))
    make_client(form.format(tmp_path), 4, 1).act(rows([4]))


def test_paths_too_long_name_the_limit(make_server, make_client):
    """Case 119."""
    path = "unix:/tmp/" + "p" * 115
    for make in (make_server, make_client):
        with pytest.raises(ValueError, match="the system's limit for a socket is 107"):
            make(path)


@pytest.mark.server_only
@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:0", "unix:{}/p"])
def test_an_address_in_use_is_refused(
    make_server, make_learner, make_client, rows, tmp_path, address
):
    """Case 111: and the first server goes on."""
    first = make_server(address.format(tmp_path))
    make_learner(first)
    client = make_client(first, 0, 1)
    with pytest.raises(OSError, match="address in use: another program serves at"):
        make_server(first.address)
    client.act(rows([0]))
    make_client(first.address, 1, 1).act(rows([1]))
    first.close(finished=True)
    make_server(first.address)


@pytest.mark.server_only
def test_a_stale_socket_file_is_replaced(make_server, make_learner, make_client, rows, tmp_path):
    """Case 111."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "p"))
    server = make_server(f"unix:{tmp_path}/p")
    make_learner(server)
    make_client(server, 0, 1).act(rows([0]))


def test_local_addresses_go_through_no_proxy(
    make_server, make_learner, make_client, rows, tmp_path, monkeypatch
):
    """Case 115."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    for address in ("localhost:0", "127.0.0.1:0", "[::1]:0", f"unix:{tmp_path}/p"):
        server = make_server(address)
        make_learner(server)
        make_client(server, 0, 1).act(rows([0]))
