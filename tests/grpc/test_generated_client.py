"""A client as a stranger writes it, on what grpcio-tools makes of service.proto.

It runs in a process of its own, since the messages may be registered once only, and without
seed_rl. Its functions print what they get.
"""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]

STRANGER = """
import itertools, json, queue, struct, sys, time
import grpc
from service_pb2 import ActRequest, JoinRequest
from service_pb2_grpc import SeedStub

channel = grpc.insecure_channel(sys.argv[2])
seed = SeedStub(channel)
layouts = seed.Join(JoinRequest(protocol_version=1), timeout=10)

def join(first_env_id=0, num_envs=1):
    return seed.Join(
        JoinRequest(
            protocol_version=1,
            name="stranger",
            first_env_id=first_env_id,
            num_envs=num_envs,
            step_layout=layouts.step_layout,
            action_layout=layouts.action_layout,
        ),
        timeout=10,
    ).lease

def message(*env_ids, step_type=0):
    n = len(env_ids)
    columns = struct.pack(f"<{n}i", *env_ids) + bytes(n * [step_type]) + bytes(12 * n)
    return ActRequest(columns=columns)

def act(requests, first_env_id=0, num_envs=1, **options):
    lease = join(first_env_id, num_envs)
    return seed.Act(iter(requests), metadata=[("seed-rl-lease", lease)], **options)

def actions(response):
    return list(struct.unpack(f"<{len(response.columns) // 4}i", response.columns))

def status(call):
    try:
        return list(call)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"

def steps():
    print([name for name, _ in json.loads(layouts.step_layout)], layouts.description)
    requests = queue.SimpleQueue()
    call = act(iter(requests.get, None), 2, 3)
    print(dict(call.initial_metadata()).keys() >= {"seed-rl-lease"})
    for step_type in (0, 1, 2):
        requests.put(message(2, 3, 4, step_type=step_type))
        print(actions(next(call)))
    requests.put(None)
    print(status(call), call.code().name)

def pipelined():
    requests = [message(1)] + [message(1, step_type=1)] * 99
    print(len([actions(response) for response in act(requests, 1)]))

def half_closed():
    call = act([message(3)], 3)
    time.sleep(0.3)  # until the end of the requests has arrived, before there is an answer
    print("sent", flush=True)
    print([actions(response) for response in call], call.code().name)

def deadline():
    print(status(act(iter(queue.SimpleQueue().get, None), timeout=0.3)))
    print(status(act([message(1)], 1, timeout=0.3)))

def cancelled():
    requests = queue.SimpleQueue()
    call = act(iter(requests.get, None))
    call.initial_metadata()
    requests.put(message(0))
    print("sent", flush=True)
    sys.stdin.readline()
    call.cancel()
    print(status(call))
    sys.stdin.readline()

def gzip():
    print(status(act([message(0)], compression=grpc.Compression.Gzip)))
    print(status(act([message(1)], 1, compression=grpc.Compression.Deflate)))
    try:
        seed.Join(JoinRequest(protocol_version=1), timeout=10, compression=grpc.Compression.Gzip)
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}")

def unknown():
    for path in ("/seed_rl.Seed/Leave", "/seed_rl.Other/Join"):
        print(status(channel.stream_stream(path)(iter([b""]), timeout=10)))

def several():
    queues = [queue.SimpleQueue() for _ in range(6)]
    calls = [act(iter(requests.get, None), env_id) for env_id, requests in enumerate(queues)]
    for step_type in (0, 1, 1):
        for env_id, requests in enumerate(queues):
            requests.put(message(env_id, step_type=step_type))
        print([actions(next(call)) for call in calls])
    calls[0].cancel()
    queues[1].put(None)
    print(list(calls[1]))
    queues[2].put(message(2, step_type=1))
    print(actions(next(calls[2])))

globals()[sys.argv[1]]()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the generated code is."""
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools, of the extra `dev`")
    folder = tmp_path_factory.mktemp("stranger")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'grpc'}"]
    outputs = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([*command, *outputs, "service.proto"], check=True)
    return folder


@pytest.fixture
def start_stranger(folder):
    processes = []

    def start(name, server):
        process = subprocess.Popen(
            [sys.executable, "-c", STRANGER, name, server.address],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def run_stranger(start_stranger):
    """A function that runs one of the stranger's and returns the lines that it printed."""

    def run(name, server):
        process = start_stranger(name, server)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return output.splitlines()

    return run


def test_a_stranger_steps(make_server, make_learner, run_stranger):
    server = make_server(description='{"seed": 3}')
    learner = make_learner(server)
    assert run_stranger("steps", server) == [
        "['env_id', 'step_type', 'reward', 'raw_reward', 'observation'] {\"seed\": 3}",
        "True",
        *["[20, 30, 40]"] * 3,
        "[] OK",
    ]
    assert [row[1] for row in learner.rows(4)] == [0, 1, 2]


def test_messages_sent_ahead_are_answered_in_turn(make_server, make_learner, run_stranger):
    server = make_server()
    learner = make_learner(server)
    assert run_stranger("pipelined", server) == ["100"]
    assert len(learner.rows(1)) == 100


def test_a_half_closed_stream_gets_its_answer(make_server, start_stranger, eventually):
    server = make_server()
    process = start_stranger("half_closed", server)
    batch = server.next_batch(20)
    assert process.stdout.readline() == "sent\n"
    server.reply(batch, [np.array([7], np.int32)])
    assert process.stdout.readline() == "[[7]] OK\n"
    eventually(lambda: server.missing_env_ids() == list(range(8)))


def test_a_deadline_ends_the_call(make_server, run_stranger, eventually):
    server = make_server()
    lines = run_stranger("deadline", server)
    assert [line.partition(":")[0] for line in lines] == 2 * ["DEADLINE_EXCEEDED"]
    eventually(lambda: server.missing_env_ids() == list(range(8)))


def test_a_cancelled_call_frees_its_environments(make_server, start_stranger, eventually):
    """While the connection goes on."""
    server = make_server()
    process = start_stranger("cancelled", server)
    assert process.stdout.readline() == "sent\n"
    batch = server.next_batch(20)
    assert 0 not in server.missing_env_ids()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith("CANCELLED")
    eventually(lambda: server.missing_env_ids() == list(range(8)))
    server.reply(batch, [np.zeros(1, np.int32)])  # to nobody


def test_compression_is_refused(make_server, run_stranger):
    assert run_stranger("gzip", make_server()) == [
        f"UNIMPLEMENTED: Compression algorithm '{name}' is disabled."
        for name in ("gzip", "deflate", "gzip")
    ]


def test_unknown_methods_are_refused(make_server, run_stranger):
    assert run_stranger("unknown", make_server()) == ["UNIMPLEMENTED: Method not found!"] * 2


def test_streams_of_one_channel_are_apart(make_server, make_learner, run_stranger):
    server = make_server()
    make_learner(server)
    answers = str([[10 * env_id] for env_id in range(6)])
    assert run_stranger("several", server) == [answers] * 3 + ["[]", "[20]"]
