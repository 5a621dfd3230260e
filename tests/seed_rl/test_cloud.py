"""The entry point of a machine in a cluster: its place, its processes, its exit code."""

import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import bucket
import psutil
import pytest

from seed_rl import cloud
from seed_rl.cloud import CloudConfig, Place
from seed_rl.crew import supervise_actors
from seed_rl.errors import UserError
from seed_rl.supervisor import Policy, Program

VERTEX = {"workerpool0": ["a:2222"], "workerpool1": ["b:2222", "c:2222"], "workerpool2": ["d:2222"]}
FLAGS = ["--environment=catch", "--agent=vtrace", "--env_batch_size=4", "--batch_size=4"]


def spec(cluster: Any, role: Any, index: Any = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


@pytest.mark.parametrize("variable", ["CLUSTER_SPEC", "TF_CONFIG"])
@pytest.mark.parametrize(
    ("cluster", "role", "index", "wanted"),
    [
        ({"master": ["a"], "worker": ["b"]}, "master", 0, Place(True, 0, 1, "a", 8686)),
        ({"chief": ["a:1"], "worker": ["b"] * 3}, "chief", 0, Place(True, 0, 3, "a", 1)),
        ({"chief": ["a:1"], "worker": ["b", "c"]}, "worker", 1, Place(False, 1, 2, "a", 1)),
        (VERTEX, "workerpool0", 0, Place(True, 0, 3, "a", 2222)),
        (VERTEX, "workerpool1", 1, Place(False, 1, 3, "a", 2222)),
        (VERTEX, "workerpool2", 0, Place(False, 2, 3, "a", 2222)),
        (
            {"workerpool0": ["[fd00::1]:5"], "workerpool10": ["k"], "workerpool2": ["c"]},
            "workerpool10",
            0,
            Place(False, 1, 2, "[fd00::1]", 5),
        ),
    ],
)
def test_roles(variable: str, cluster: Any, role: str, index: int, wanted: Place) -> None:
    """Case 21."""
    assert cloud.read_place({variable: spec(cluster, role, index)}) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (spec({"chief": ["a"], "evaluator": ["e"]}, "evaluator"), ["'evaluator'", "master, chief"]),
        (spec({"chief": ["a"], "ps": ["e"]}, "chief"), ["'ps'", "workerpool1, workerpool2"]),
        (spec({"chief": ["a"], "worker": ["b"]}, None), ["'None'", "master, chief or workerpool0"]),
        (spec({"chief": ["a"], "worker": ["b"]}, "worker", 1), ["worker 1", "1 of chief"]),
        (spec({"chief": ["a"], "worker": ["b"]}, "worker", "0"), ["worker '0'"]),
        (spec({"worker": ["b"]}, "worker"), ["0 machines of master, chief or workerpool0"]),
        (spec({"chief": ["a"], "master": ["b"]}, "chief"), ["2 machines of master"]),
        (spec({"chief": ["a"]}, "chief"), ["no machine for actors", "workerpool1"]),
        (spec({"chief": "a", "worker": ["b"]}, "chief"), ["chief is 'a'", "list of host:port"]),
        (spec({"chief": ["a:b:c"], "worker": ["b"]}, "worker"), ["'a:b:c'", "host:port"]),
        (spec(["a"], "chief"), ["saw cluster as ['a']"]),
        ("[]", ["saw cluster as None"]),
        ("{", ["CLUSTER_SPEC:"]),
    ],
)
def test_what_is_no_place_is_refused(text: str, words: list[str]) -> None:
    """Case 21: the roles that are accepted are named."""
    with pytest.raises(UserError) as error:
        cloud.read_place({"CLUSTER_SPEC": text})
    for word in words:
        assert word in str(error.value)


def test_cluster_spec_comes_before_tf_config() -> None:
    """Vertex AI sets both, and calls its second pool of actors `ps` in the other."""
    other = spec({"chief": ["a:2222"], "worker": ["b"], "ps": ["d"]}, "ps")
    place = cloud.read_place({"CLUSTER_SPEC": spec(VERTEX, "workerpool2"), "TF_CONFIG": other})
    assert place.index == 2


def test_no_cluster_is_refused() -> None:
    with pytest.raises(UserError, match="neither CLUSTER_SPEC nor TF_CONFIG is set"):
        cloud.read_place({"CLUSTER_SPEC": ""})


def test_actors_are_numbered_over_all_machines(tmp_path: pathlib.Path) -> None:
    place = Place(False, 2, 3, "a", 2222)
    words = ["--game=Pong", "--token", "secret", "--batch_size=64", "--reconnect_secs=5"]
    programs = cloud.actor_programs(place, CloudConfig(20, 2), words, tmp_path)
    assert [program.name for program in programs] == [f"actor {task}" for task in range(40, 60)]
    command = list(programs[1].command)
    assert command[1:4] == ["-m", "seed_rl", "--run_mode=actor"]
    assert {"--task=41", "--num_envs=120", "--env_batch_size=2"} < set(command)
    assert "--server_address=a:2222" in command
    assert command[command.index("--token") + 1] == "secret"
    assert not {"--game=Pong", "--batch_size=64"} & set(command)
    # The later one of two counts.
    assert command.index("--reconnect_secs=3600") < command.index("--reconnect_secs=5")


def test_the_learner_gets_its_own_flags() -> None:
    words = ["--game=Pong", "--token=secret", "--reconnect_secs=5", "--no_such_flag"]
    place = Place(True, 0, 32, "[::1]", 2222)
    command = cloud.learner_command(place, CloudConfig(20, 1), words)
    wanted = {"--game=Pong", "--token=secret", "--no_such_flag", "--num_envs=640"}
    assert wanted < set(command)
    assert "--server_address=[::]:2222" in command
    assert "--reconnect_secs=5" not in command


def run(argv: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("CLUSTER_SPEC", "TF_CONFIG")}
    return subprocess.run(
        [sys.executable, "-m", "seed_rl.cloud", *argv],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--task=3"], "leave out --task: the cluster says it"),
        (["--num_envs=5", "--actors_per_worker=2"], "3 machines x 2 actors x 16 environments = 96"),
        (["--actors_per_worker=0"], "--actors_per_worker is 0, wanted at least 1"),
    ],
)
def test_mistakes_are_one_line(argv: list[str], words: str) -> None:
    result = run(argv, CLUSTER_SPEC=spec(VERTEX, "workerpool1"))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert words in line


def test_the_learners_refusal_is_the_exit_code() -> None:
    result = run(["--no_such_flag=1", "--logdir=x"], CLUSTER_SPEC=spec(VERTEX, "workerpool0"))
    assert result.returncode == 2
    assert "no_such_flag" in result.stderr


def crew(folder: pathlib.Path, *programs: str) -> int:
    scratch = folder / "scratch"
    scratch.mkdir()
    actors = [
        Program(f"actor {i}", [sys.executable, "-c", text], scratch / f"{i}.log")
        for i, text in enumerate(programs)
    ]
    policy = Policy(
        finished_delay_secs=float("inf"), first_delay_secs=0.05, stop_secs=3, farewell_secs=0.5
    )
    code = supervise_actors(actors, terminal=sys.stdout, scratch_folder=str(scratch), policy=policy)
    assert not scratch.exists()
    return code


def test_the_first_actor_that_keeps_failing_gives_the_code(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = "import time; time.sleep(60)"
    assert crew(tmp_path, lives, "print('no game'); raise SystemExit(7)") == 7
    output = capsys.readouterr().out
    assert output.count("no game") == 3
    assert "it starts again" in output
    assert "actor 1 exited with code 7, 3 times in a row after less than 10 s" in output


def test_actors_are_done_when_training_is_over(tmp_path: pathlib.Path) -> None:
    started = time.monotonic()
    assert crew(tmp_path, "", "import time; time.sleep(60)") == 0
    assert time.monotonic() - started < 10


def test_an_actor_that_died_is_replaced(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "mark"
    text = f"""
import os, pathlib
mark = pathlib.Path({str(mark)!r})
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), 9)
"""
    assert crew(tmp_path, text) == 0
    assert mark.exists()


class Cluster:
    """The machines of a cluster as processes of this one."""

    def __init__(
        self, folder: pathlib.Path, cluster: dict[str, list[str]], variable: str = "CLUSTER_SPEC"
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._variable = variable
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        role: str,
        index: int,
        *argv: str,
        before: tuple[str, ...] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        command = [*before, sys.executable, "-m", "seed_rl.cloud", *FLAGS, *argv]
        with open(self._folder / f"{role}-{index}.txt", "ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, self._variable: spec(self._cluster, role, index), **environment},
                stdout=output,
                stderr=output,
            )
        self._processes.append(process)
        return process

    @staticmethod
    def lose(machine: subprocess.Popen[bytes]) -> None:
        """All that runs there is gone at once."""
        process = psutil.Process(machine.pid)
        for each in [*process.children(recursive=True), process]:
            each.kill()
        machine.wait(10)

    def text(self) -> str:
        paths = sorted(self._folder.glob("*.txt"))
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in paths)

    def frames(self) -> int:
        """Of the learner's last status line, 0 before there is one."""
        return int((re.findall(r"\bframes ([0-9,]+)/", self.text()) or ["0"])[-1].replace(",", ""))

    def wait_until(self, is_true: Callable[[], bool], secs: float = 60) -> None:
        deadline = time.monotonic() + secs
        while not is_true():
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.1)

    def wait_for(self, text: str, times: int = 1) -> None:
        self.wait_until(lambda: self.text().count(text) >= times)

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(15)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def logdir(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run"


@pytest.mark.timeout(240)
def test_a_cluster_on_loopback(tmp_path: pathlib.Path, logdir: pathlib.Path) -> None:
    """A learner and two machines of an actor each, all of which vanish and are replaced."""
    pools = {"workerpool0": [f"127.0.0.1:{free_port()}"], "workerpool1": ["127.0.0.1"] * 2}
    cluster = Cluster(tmp_path, pools)
    flags = [f"--logdir={logdir}", "--unroll_length=5", "--log_secs=0.5"]
    flags += ["--save_checkpoint_secs=0.5", "--total_environment_frames=1000000000"]
    joined = [f"with environments {4 * task}..{4 * task + 3} joined" for task in range(2)]
    try:
        learner = cluster.start("workerpool0", 0, *flags)
        workers = [cluster.start("workerpool1", index, *flags) for index in range(2)]
        for line in joined:
            cluster.wait_for(line)
        cluster.wait_until(lambda: len(list(logdir.glob("checkpoints/*.index"))) > 0)

        cluster.lose(learner)
        learner = cluster.start("workerpool0", 0, *flags)
        cluster.wait_for("resuming from")
        for line in joined:
            cluster.wait_for(line, times=2)
        assert all(worker.poll() is None for worker in workers), cluster.text()

        cluster.lose(workers[1])
        workers[1] = cluster.start("workerpool1", 1, *flags)
        cluster.wait_for(joined[1], times=3)
        frames = cluster.frames()
        cluster.wait_until(lambda: cluster.frames() > frames)

        learner.send_signal(signal.SIGTERM)
        # Not 0: training is not over.
        assert learner.wait(30) == 128 + signal.SIGTERM, cluster.text()
        assert all(worker.poll() is None for worker in workers), cluster.text()

        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(30) for worker in workers] == [128 + signal.SIGTERM] * 2
    finally:
        cluster.end()


def test_a_learner_never_outlives_its_entry_point() -> None:
    """Or it would keep the port and the log dir from the one that is started next."""
    text = """
import sys
from seed_rl import cloud
cloud.run_learner([sys.executable, "-c", "print('runs', flush=True); import time; time.sleep(60)"])
"""
    entry = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    assert entry.stdout is not None
    with entry.stdout:
        assert entry.stdout.readline() == b"runs\n"
        entry.kill()
        entry.wait(10)
        # The pipe is closed once nobody is left who could write to it.
        assert entry.stdout.read() == b""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="found no openssl")
def test_a_cluster_with_a_bucket(tmp_path: pathlib.Path) -> None:
    """TensorFlow's own gs:// keeps a run that is preempted, resumed, finished and evaluated."""
    pools = {"workerpool0": [f"127.0.0.1:{free_port()}"], "workerpool1": ["any"]}
    cluster = Cluster(tmp_path, pools)
    flags = ["--logdir=gs://bucket/runs/one", "--unroll_length=5", "--log_secs=2"]
    flags.append("--save_checkpoint_secs=2")
    with bucket.serving(tmp_path) as google:

        def kept(pattern: str) -> list[str]:
            return [name for name in list(google.objects) if re.search(pattern, name)]

        try:
            start = functools.partial(
                cluster.start, "workerpool0", 0, *flags, environment=google.environment
            )
            learner = start("--total_environment_frames=1000000000")
            worker = cluster.start("workerpool1", 0, *flags)
            cluster.wait_until(lambda: len(kept(r"ckpt-[0-9]+\.index$")) >= 2)
            cluster.lose(learner)
            learner = start(f"--total_environment_frames={cluster.frames() + 5000}")
            assert learner.wait(120) == 0, cluster.text()
            assert worker.wait(30) == 0, cluster.text()
        finally:
            cluster.end()
        assert "resuming from gs://bucket/runs/one/checkpoints/ckpt-" in cluster.text()
        assert kept("^runs/one/config.json$")
        assert len(kept(r"^runs/one/checkpoints/ckpt-[0-9]+\.index$")) == 3
        assert len(kept("^runs/one/events.out.tfevents")) == 2
        assert not kept(r"unfinished|\.new$")
        played = subprocess.run(
            [
                *(sys.executable, "-m", "seed_rl.evaluate", "--logdir=gs://bucket/runs/one"),
                "--episodes=2",
            ],
            env={**os.environ, **google.environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert played.returncode == 0, played.stderr
        assert "episode 2/2: return" in played.stdout


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=10, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces, whose addresses are 10.231.7.1 and 10.231.7.2."""
    if os.geteuid() != 0:
        pytest.skip("only root may make network namespaces")
    if shutil.which("ip") is None:
        pytest.skip("found no ip: type sudo apt-get install iproute2")
    mark = uuid.uuid4().hex[:6]
    names = f"seed{mark}a", f"seed{mark}b"
    links = f"sv{mark}a", f"sv{mark}b"
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine can't have network namespaces: {error.stderr.decode()}")
        for number, (name, link) in enumerate(zip(names, links, strict=True), start=1):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"10.231.7.{number}/24", "dev", link)
            ip("-n", name, "addr", "add", f"fd00:231:7::{number}/64", "dev", link, "nodad")
            ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=10)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.231.7.1", pytest.param("[fd00:231:7::1]", marks=pytest.mark.slow)]
)
def test_training_ends_on_all_machines(
    tmp_path: pathlib.Path, logdir: pathlib.Path, request: pytest.FixtureRequest, host: str
) -> None:
    """Case 23: two hosts that share nothing but a network; also by IPv6."""
    before: list[tuple[str, ...]] = [(), ()]
    address = f"{host}:{free_port()}"
    if host != "127.0.0.1":
        before = [("ip", "netns", "exec", name) for name in request.getfixturevalue("hosts")]
    cluster = Cluster(tmp_path, {"chief": [address], "worker": ["any"]}, "TF_CONFIG")
    flags = [f"--logdir={logdir}", "--unroll_length=5", "--total_environment_frames=4000"]
    try:
        worker = cluster.start("worker", 0, *flags, "--actors_per_worker=2", before=before[1])
        chief = cluster.start("chief", 0, *flags, "--actors_per_worker=2", before=before[0])
        assert chief.wait(90) == 0, cluster.text()
        assert worker.wait(30) == 0, cluster.text()
    finally:
        cluster.end()


def link_of(host: str) -> str:
    """The name of the host's end of the link, by which `ip -n` sets it up and down."""
    return host.replace("seed", "sv")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("secs", [8, 60])
def test_a_link_that_is_down_for_a_while(
    tmp_path: pathlib.Path, logdir: pathlib.Path, hosts: tuple[str, str], secs: int
) -> None:
    """Case 23: TCP outlasts some seconds; in a minute both ends give up, and actors join anew."""
    pools = {"workerpool0": ["10.231.7.1:2222"], "workerpool1": ["10.231.7.2:2222"]}
    cluster = Cluster(tmp_path, pools)
    flags = [f"--logdir={logdir}", "--unroll_length=5", "--log_secs=1", "--actors_per_worker=2"]
    flags.append("--total_environment_frames=1000000000")
    try:
        learner = cluster.start("workerpool0", 0, *flags, before=("ip", "netns", "exec", hosts[0]))
        worker = cluster.start("workerpool1", 0, *flags, before=("ip", "netns", "exec", hosts[1]))
        cluster.wait_until(lambda: cluster.frames() > 2000)
        ip("-n", hosts[1], "link", "set", link_of(hosts[1]), "down")
        time.sleep(4)  # what had arrived is trained on
        frames = cluster.frames()
        time.sleep(secs - 4)
        assert cluster.frames() == frames, cluster.text()
        ip("-n", hosts[1], "link", "set", link_of(hosts[1]), "up")
        cluster.wait_until(lambda: cluster.frames() > frames + 2000)
        # Two actors joined at first.
        assert cluster.text().count(" joined") == (4 if secs == 60 else 2), cluster.text()
        assert (learner.poll(), worker.poll()) == (None, None)
    finally:
        cluster.end()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_machine_that_vanishes_without_a_word_is_replaced(
    tmp_path: pathlib.Path, logdir: pathlib.Path, hosts: tuple[str, str]
) -> None:
    """Its address answers no more: the learner still holds its environments for some seconds."""
    pools = {"workerpool0": ["10.231.7.1:2222"], "workerpool1": ["10.231.7.2:2222"]}
    cluster = Cluster(tmp_path, pools)
    flags = [f"--logdir={logdir}", "--unroll_length=5", "--log_secs=1"]
    flags.append("--total_environment_frames=1000000000")
    link = link_of(hosts[1])
    inside = [("ip", "netns", "exec", name) for name in hosts]
    try:
        cluster.start("workerpool0", 0, *flags, before=inside[0])
        worker = cluster.start("workerpool1", 0, *flags, before=inside[1])
        cluster.wait_until(lambda: cluster.frames() > 1000)
        ip("-n", hosts[1], "link", "set", link, "down")
        cluster.lose(worker)
        ip("-n", hosts[1], "addr", "del", "10.231.7.2/24", "dev", link)
        ip("-n", hosts[1], "addr", "add", "10.231.7.3/24", "dev", link)
        ip("-n", hosts[1], "link", "set", link, "up")
        worker = cluster.start("workerpool1", 0, *flags, before=inside[1])
        cluster.wait_for(" joined", times=2)
        frames = cluster.frames()
        cluster.wait_until(lambda: cluster.frames() > frames + 1000)
        assert worker.poll() is None
        assert "starts again" not in cluster.text()
    finally:
        cluster.end()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("core", ["auto", "python"])
def test_a_learner_that_is_replaced_has_another_address(
    tmp_path: pathlib.Path, logdir: pathlib.Path, hosts: tuple[str, str], core: str
) -> None:
    """Its name is unknown at first, and later means another machine."""
    cluster = Cluster(tmp_path, {"workerpool0": ["learner.test:2222"], "workerpool1": ["any"]})
    flags = [f"--logdir={logdir}", "--unroll_length=5", "--log_secs=1", f"--core={core}"]
    flags += ["--save_checkpoint_secs=1", "--total_environment_frames=1000000000"]
    link = link_of(hosts[0])
    inside = [("ip", "netns", "exec", name) for name in hosts]
    names = pathlib.Path("/etc/netns") / hosts[1] / "hosts"  # what is /etc/hosts there
    names.parent.mkdir(parents=True)
    try:
        names.write_text("")
        worker = cluster.start("workerpool1", 0, *flags, before=inside[1])
        cluster.wait_for("no connection to the learner at learner.test:2222")
        learner = cluster.start("workerpool0", 0, *flags, before=inside[0])
        names.write_text("10.231.7.1 learner.test\n")
        cluster.wait_until(lambda: bool(list(logdir.glob("checkpoints/*.index"))))

        ip("-n", hosts[0], "link", "set", link, "down")
        cluster.lose(learner)
        ip("-n", hosts[0], "addr", "del", "10.231.7.1/24", "dev", link)
        ip("-n", hosts[0], "addr", "add", "10.231.7.3/24", "dev", link)
        ip("-n", hosts[0], "link", "set", link, "up")
        names.write_text("10.231.7.3 learner.test\n")
        cluster.start("workerpool0", 0, *flags, before=inside[0])
        cluster.wait_for("resuming from")
        frames = cluster.frames()
        cluster.wait_until(lambda: cluster.frames() > frames + 1000, secs=90)
        assert worker.poll() is None
        assert "starts again" not in cluster.text()
    finally:
        cluster.end()
        shutil.rmtree(names.parent)
