"""What bench_transport.py makes of its measurements: figures, tables, and targets."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from transport_load import Load, Result, ratio

# As many agent steps as 2.4 M frames a second are at an action repeat of 4.
_WANTED_ROWS_S = 600_000
_VARIANTS = ("native", "python", "mixed", "raw", "paced")
_SHOWN = ("native", "python", "raw")
Results = dict[tuple[Load, str], Result]


@dataclasses.dataclass
class Measured:
    """All results of a run, by part; a part that wasn't measured is empty."""

    streams: int
    stream_counts: list[int]
    latency: Results = dataclasses.field(default_factory=dict)
    throughput: Results = dataclasses.field(default_factory=dict)
    growth: Results = dataclasses.field(default_factory=dict)
    idle_percent: dict[str, float] = dataclasses.field(default_factory=dict)
    idle_streams: int = 0
    resting: Results = dataclasses.field(default_factory=dict)  # without training
    training: Results = dataclasses.field(default_factory=dict)

    def alone(self, variant: str, num_rows: int, row: str, transport: str) -> Result | None:
        return self.latency.get((Load(row, num_rows, 1, transport), variant))

    def many(self, variant: str, num_rows: int, row: str, transport: str = "unix") -> Result | None:
        return self.throughput.get((Load(row, num_rows, self.streams, transport), variant))

    def grown(self, variant: str, num_rows: int, num_streams: int) -> Result | None:
        return self.growth.get((Load("64b", num_rows, num_streams), variant))

    def growth_of(self, variant: str, num_rows: int, figure: str) -> float | None:
        """The largest rise: the cost at any number of streams over the least at fewer."""
        results = [self.grown(variant, num_rows, count) for count in self.stream_counts]
        found = [result for result in results if result is not None]
        if not found or not all(result.median(figure) for result in found):
            return None
        return max(
            ratio(more, fewer, figure)
            for fewer, more in itertools.combinations_with_replacement(found, 2)
        )

    def training_cost(self, variant: str, num_rows: int) -> float | None:
        """A message's, of the transport's threads, over that without training."""
        key = Load("64b", num_rows, self.streams), variant
        if key not in self.training:
            return None
        return ratio(self.training[key], self.resting[key], "transport_us")


def figures(measured: Measured, variant: str) -> dict[str, float | None]:
    """A variant's, by name; None where one wasn't measured."""

    def of(result: Result | None, get: Callable[[Result], float], digits: int = 2) -> float | None:
        return None if result is None else round(get(result), digits)

    found: dict[str, float | None] = {}
    for num_rows, row, name in (
        (1, "64b", "single"),
        (1, "frame", "single_frame"),
        (64, "64b", "64x64b"),
        (64, "frame", "64xframe"),
    ):
        alone = measured.alone(variant, num_rows, row, "unix")
        many = measured.many(variant, num_rows, row)
        tcp = measured.many(variant, num_rows, row, "tcp")
        found[f"rows_s_{name}"] = of(many, lambda r: r.median("rows_s"), 0)
        found[f"rows_s_tcp_{name}"] = of(tcp, lambda r: r.median("rows_s"), 0)
        found[f"server_us_{name}"] = of(many, lambda r: r.median("server_us"))
        found[f"server_us_tcp_{name}"] = of(tcp, lambda r: r.median("server_us"))
        found[f"server_us_row_{name}"] = of(many, lambda r: r.server_us_row, 4)
        found[f"rows_s_core_{name}"] = of(many, lambda r: r.rows_s_core, 0)
        found[f"client_us_{name}"] = of(alone, lambda r: r.median("client_us"))
        found[f"client_us_many_{name}"] = of(many, lambda r: r.median("client_us"))
    for transport in ("unix", "tcp"):
        alone = measured.alone(variant, 1, "64b", transport)
        for percentile in (50, 99):
            found[f"p{percentile}_us_{transport}"] = of(
                alone, lambda r, percentile=percentile: r.latency_us(percentile), 1
            )
    found["cores_for_2_4m_frames_s"] = of(
        measured.many(variant, 64, "frame"), lambda r: _WANTED_ROWS_S * 1e-6 * r.server_us_row
    )
    for num_rows, name in ((1, "single"), (64, "64x64b")):
        for count in measured.stream_counts:
            result = measured.grown(variant, num_rows, count)
            found[f"row_us_{name}_{count}_streams"] = of(result, lambda r: r.server_us_row, 4)
        found[f"row_cost_growth_{name}"] = _rounded(
            measured.growth_of(variant, num_rows, "server_us")
        )
        found[f"loop_cost_growth_{name}"] = _rounded(
            measured.growth_of(variant, num_rows, "loop_us")
        )
        found[f"training_cost_{name}"] = _rounded(measured.training_cost(variant, num_rows))
    found["idle_percent"] = _rounded(measured.idle_percent.get(variant))
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def summary(measured: Measured, core: str) -> dict[str, Any]:
    """All figures: those of the active core without a prefix, then each variant's with one."""
    by_variant = {variant: figures(measured, variant) for variant in _VARIANTS}
    found: dict[str, Any] = {"core": core, **by_variant[core]}
    found["raw_epoll_us"] = by_variant["raw"]["server_us_single"]
    for variant, values in by_variant.items():
        found |= {f"{variant}_{name}": value for name, value in values.items()}
    found["results"] = [
        {"part": part, "variant": variant, **dataclasses.asdict(load), **result.to_json()}
        for part in ("latency", "throughput", "growth", "resting", "training")
        for (load, variant), result in getattr(measured, part).items()
    ]
    return found


@dataclasses.dataclass
class _Line:
    title: str
    values: list[float | None]  # native, python, raw
    digits: int = 1
    ratio: float | None = None  # of native to python, or to what the title says
    target: str = ""
    judged: float | None = None  # None: not measured
    limit: float = 0.0
    is_upper: bool = True

    def cells(self) -> list[str]:
        met = ""
        if self.target:
            met = "?"
            if self.judged is not None:
                is_met = self.judged <= self.limit if self.is_upper else self.judged >= self.limit
                met = "yes" if is_met else "NO"
        numbers = ["-" if v is None else f"{v:,.{self.digits}f}" for v in self.values]
        return [
            self.title,
            *numbers,
            "" if self.ratio is None else f"{self.ratio:.3g}",
            self.target,
            met,
        ]


def table(measured: Measured) -> list[str]:
    """For people. Whether a target is met is said of the native core."""
    by_variant = {variant: figures(measured, variant) for variant in _VARIANTS}
    native, python, raw = (by_variant[variant] for variant in _SHOWN)
    many = f"{measured.streams} streams"
    lines: list[_Line] = []

    def add(
        title: str,
        name: str,
        digits: int = 1,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        limit = at_least if at_most is None else at_most
        line = _Line(title, [native[name], python[name], raw[name]], digits)
        line.ratio = _divide(native[name], python[name])
        if limit is not None:
            line.judged, line.limit, line.is_upper = native[name], limit, at_least is None
            line.target = f"{'<=' if line.is_upper else '>='} {limit:,.15g}"
        lines.append(line)

    def add_ratio(title: str, value: float | None, at_most: float) -> None:
        lines.append(_Line(title, [None] * 3, 1, value, f"<= {at_most:.3g}", value, at_most))

    def server_ratio(num_rows: int, row: str, other: str) -> float | None:
        a, b = measured.many("native", num_rows, row), measured.many(other, num_rows, row)
        return None if a is None or b is None else ratio(a, b, "server_us")

    def client_ratio() -> float | None:
        a, b = (measured.alone(core, 1, "64b", "unix") for core in ("native", "python"))
        return None if a is None or b is None else ratio(a, b, "client_us")

    if measured.throughput:
        add(f"rows/s, 64x64b, {many}", "rows_s_64x64b", 0, at_least=2_000_000)
        add(f"rows/s, 64xframe, {many}", "rows_s_64xframe", 0, at_least=300_000)
        add(f"rows/s, 1x64b, {many}", "rows_s_single", 0)
        add(f"rows/s, 64x64b, {many}, tcp", "rows_s_tcp_64x64b", 0)
        add(f"rows/s, 64xframe, {many}, tcp", "rows_s_tcp_64xframe", 0)
        add(f"server us a message, 1x64b, {many}", "server_us_single", at_most=10)
        add_ratio("  native / raw", server_ratio(1, "64b", "raw"), 2)
        add_ratio("  native / raw at its pace", server_ratio(1, "64b", "paced"), 2)
        add_ratio("  native / python", server_ratio(1, "64b", "python"), 1 / 5)
        add_ratio("  native / python with native clients", server_ratio(1, "64b", "mixed"), 1 / 5)
        add(f"server us a message, 1x64b, {many}, tcp", "server_us_tcp_single")
        add(f"server us a message, 1xframe, {many}", "server_us_single_frame")
        add(f"server us a message, 64x64b, {many}", "server_us_64x64b")
        add(f"server us a message, 64xframe, {many}", "server_us_64xframe")
        add_ratio("  native / python", server_ratio(64, "frame", "python"), 1 / 3)
        add_ratio(
            "  native / python with native clients", server_ratio(64, "frame", "mixed"), 1 / 3
        )
        add("server us a row, 64x64b", "server_us_row_64x64b", 3)
        add("server us a row, 64xframe", "server_us_row_64xframe", 3)
        add("rows/s a server core, 64x64b", "rows_s_core_64x64b", 0)
        add("rows/s a server core, 64xframe", "rows_s_core_64xframe", 0)
        add("cores for 2.4 M frames/s, repeat 4, 64xframe", "cores_for_2_4m_frames_s", 2)
        add(f"client us a step, 1x64b, {many}", "client_us_many_single")
        add(f"client us a step, 64xframe, {many}", "client_us_many_64xframe")
    if measured.latency:
        add("client us a step, 1x64b, 1 stream", "client_us_single", at_most=15)
        add_ratio("  native / python", client_ratio(), 1 / 5)
        add("round trip p50 us, 1x64b, unix", "p50_us_unix", at_most=40)
        add("round trip p99 us, 1x64b, unix", "p99_us_unix")
        add("round trip p50 us, 1x64b, tcp", "p50_us_tcp")
        add("round trip p99 us, 1x64b, tcp", "p99_us_tcp")
    if measured.growth:
        for num_rows, name in ((1, "single"), (64, "64x64b")):
            title = f"cost a row, {num_rows}x64b: largest rise as streams grow"
            add(title, f"row_cost_growth_{name}", 2, at_most=1.3)
    if measured.training:
        for num_rows, name in ((1, "single"), (64, "64x64b")):
            title = f"cost a message, {num_rows}x64b: training / idle"
            add(title, f"training_cost_{name}", 2, at_most=1.25)
    if measured.idle_percent:
        title = f"idle server, {measured.idle_streams:,} streams: % of a core"
        add(title, "idle_percent", 2, at_most=1)
    head = ["figure", "native", "python", "raw", "ratio", "target", "met"]
    return _aligned([head, *(line.cells() for line in lines)])


def growth_table(measured: Measured) -> list[str]:
    """Server CPU a row by the number of streams, and how much of it the loop's thread takes."""
    if not measured.growth:
        return []
    cells = [
        ["server us a row", "streams", "native", "in the loop", "python", "in the loop", "raw"]
    ]
    for num_rows in (1, 64):
        for count in measured.stream_counts:
            row = [f"{num_rows}x64b", f"{count:,}"]
            for variant in ("native", "python", "raw"):
                result = measured.grown(variant, num_rows, count)
                row.append("-" if result is None else f"{result.server_us_row:.3f}")
                if variant != "raw":
                    row.append(
                        "-" if result is None else f"{result.median('loop_us') / num_rows:.3f}"
                    )
            cells.append(row)
    return _aligned(cells)


def _divide(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _aligned(cells: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
