"""The native core works beside TensorFlow and grpcio, whichever is imported first."""

import itertools
import re
import shutil
import subprocess
import sys
from concurrent import futures

import pytest

from seed_rl.grpc import core

pytestmark = pytest.mark.skipif(core.why_python() != "", reason=core.why_python())

# Each of the others brings its own HTTP/2 and gRPC into the process.
MODULES = ("tensorflow", "grpc", "seed_rl.grpc._native")

PROGRAM = """
import importlib
import sys
import threading

modules = {name: importlib.import_module(name) for name in sys.argv[1:]}
from seed_rl.grpc.client import make_client
from seed_rl.grpc.codec import action_layout, step_layout
from seed_rl.grpc.server import ServerClosed, make_server
from seed_rl.specs import ArraySpec

layouts = step_layout(ArraySpec((84, 84), "uint8")), action_layout(ArraySpec((), "int32", 0, 99))

def answer(server):
    try:
        while True:
            batch = server.next_batch(1.0)
            if batch is not None:
                server.reply(batch, [batch.columns[0] * 10])
    except ServerClosed:
        pass

for server_core in ("python", "native"):
    server = make_server("localhost:0", *layouts, "{}", 8, 8, 0.01, core=server_core)
    thread = threading.Thread(target=answer, args=(server,))
    thread.start()
    for client_core in ("native", "python"):
        client = make_client(server.address, core=client_core)
        client.describe()
        client.join(4, 4, *layouts)
        columns = layouts[0].empty(4)
        columns[0][:] = range(4, 8)
        for _ in range(20):
            assert client.act(columns)[0].tolist() == [40, 50, 60, 70]
        client.close()
        while server.missing_env_ids() != list(range(8)):
            pass
    server.close(finished=True)
    thread.join()
tensorflow = modules["tensorflow"]
assert float(tensorflow.reduce_sum(tensorflow.ones([3, 3]) @ tensorflow.ones([3, 3]))) == 27
print("well")
"""


def run(order):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *order], capture_output=True, text=True, timeout=300
    )


@pytest.mark.timeout(600)  # TensorFlow takes its time where the machine is busy
def test_every_order_of_imports_works():
    """Six processes, two at a time."""
    orders = list(itertools.permutations(MODULES))
    with futures.ThreadPoolExecutor(2) as pool:
        for order, done in zip(orders, pool.map(run, orders), strict=True):
            assert done.returncode == 0, f"{order}: {done.stderr}"
            assert done.stdout == "well\n", order


def test_only_the_modules_entry_is_exported():
    """So nothing of it can be taken for another module's."""
    from seed_rl.grpc import _native

    if shutil.which("nm") is None:
        pytest.skip("needs nm, of the package binutils")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", _native.__file__], check=True, capture_output=True, text=True
    )
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert [
        name for name in names if not re.fullmatch(r"_(init|fini|edata|end)|__bss_start", name)
    ] == ["PyInit__native"]
