import pathlib
import re
import subprocess
import sys

import pytest

from seed_rl.grpc import protocol, service_pb2

ROOT = pathlib.Path(__file__).parents[2]
OLDEST_PROTOBUF = (6, 31, 1)  # that setup.py allows


def test_generated_code_is_that_of_service_proto(tmp_path):
    """Mended by: python -m grpc_tools.protoc --proto_path=seed_rl/grpc=grpc --python_out=OUT
    --pyi_out=OUT seed_rl/grpc/service.proto, with grpcio-tools 1.76 and protobuf 6.31.1; the files
    are then in OUT/seed_rl/grpc.
    """
    pytest.importorskip("grpc_tools")
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=seed_rl/grpc=grpc"]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *outputs, "seed_rl/grpc/service.proto"], cwd=ROOT, check=True)
    for name in ("service_pb2.py", "service_pb2.pyi"):
        fresh = (tmp_path / "seed_rl/grpc" / name).read_text()
        checked_in = (ROOT / "grpc/python" / name).read_text()
        assert _without_version(checked_in) == _without_version(fresh), name


def test_generated_code_works_with_the_oldest_protobuf_allowed():
    """Generated code refuses every protobuf that is older than its generator."""
    text = (ROOT / "grpc/python/service_pb2.py").read_text()
    version = re.search(r"^# Protobuf Python Version: (\d+)\.(\d+)\.(\d+)$", text, re.M)
    assert version is not None
    assert tuple(map(int, version.groups())) == OLDEST_PROTOBUF
    assert f"protobuf>={'.'.join(map(str, OLDEST_PROTOBUF))}" in (ROOT / "setup.py").read_text()


def test_names_of_methods_are_those_of_service_proto():
    service = service_pb2.DESCRIPTOR.services_by_name["Seed"]
    assert service.full_name == protocol.SERVICE
    assert [f"/{service.full_name}/{method.name}" for method in service.methods] == [
        protocol.JOIN,
        protocol.ACT,
    ]


def test_messages_of_the_codec_are_those_of_service_proto():
    from seed_rl.grpc.codec import step_layout
    from seed_rl.specs import ArraySpec

    layout = step_layout(ArraySpec((300,), "uint8"))
    for n in (1, 3, 100):
        message = layout.encode(layout.empty(n))
        assert service_pb2.ActRequest.FromString(message).columns == bytes(n * layout.row_bytes)
        again = service_pb2.ActRequest(columns=bytes(n * layout.row_bytes)).SerializeToString()
        assert message == again


def _without_version(text):
    text = re.sub(r"^# Protobuf Python Version: .*$", "", text, flags=re.M)
    return re.sub(r"(Domain\.PUBLIC,\s+)\d+,\s+\d+,\s+\d+,", r"\1", text)
