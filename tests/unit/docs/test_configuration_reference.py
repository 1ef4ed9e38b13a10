"""The reference pages against the code: every key with its type and default, samples, worked examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from cvs import metrics
from cvs.config import AortaConfig, ClusterConfig, load_aorta, load_cluster
from cvs.kernels import Bucket, bucket_of
from cvs.models import ParseOptions, Quality, RankMetrics, Ratios, Step
from cvs.parsers.host_reading import _computes
from cvs.parsers.torch_trace import TorchTraceParser, trace_set_of

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
CONFIGURATION = REFERENCE / "configuration-files"

Row = tuple[str, ...]


# --- reading the pages ------------------------------------------------------------------------------------


def list_tables(page: Path) -> Iterator[tuple[str, list[Row]]]:
    """Name ("" without one) and rows, the header first, of each list-table; literals without backquotes."""
    text = page.read_text("utf-8").replace("``", "")
    for block in re.findall(r"^\.\. list-table::.*\n((?: .*\n|\n)+)", text, re.MULTILINE):
        name = re.search(r"^   :name: (.*)$", block, re.MULTILINE)
        rows: list[list[str]] = []
        for line in block.splitlines():
            if line.startswith("   * - "):
                rows.append([line[7:]])
            elif line.startswith("     - "):
                rows[-1].append(line[7:])
            elif rows and line:
                rows[-1][-1] += f" {line.strip()}"
        yield name[1] if name else "", [tuple(row) for row in rows]


def table(page: str, name: str) -> list[Row]:
    """Rows, without the header, of the table `name`."""
    [rows] = [rows for found, rows in list_tables(REFERENCE / page) if found == name]
    return rows[1:]


def documented_keys(page: str) -> list[Row]:
    """Key, type and default of every row in the tables of keys."""
    tables = [rows for _, rows in list_tables(CONFIGURATION / page)]
    return [row[:3] for header, *rows in tables if header[:3] == ("Key", "Type", "Default") for row in rows]


def code_blocks(page: str, language: str) -> list[str]:
    """Texts of the page's code blocks in one language."""
    pattern = rf"^\.\. code-block:: {language}\n\n((?:   .*\n|\n)+)"
    found = re.findall(pattern, (CONFIGURATION / page).read_text("utf-8"), re.MULTILINE)
    return [re.sub("^   ", "", text, flags=re.MULTILINE) for text in found]


# --- what the models say ----------------------------------------------------------------------------------


def model_keys(model: type[BaseModel]) -> Iterator[Row]:
    """Key, type and default of every key that the model takes, as the pages write them."""
    schema = model.model_json_schema()
    return _keys(schema, schema["$defs"], "")


def _keys(schema: dict[str, Any], parts: dict[str, Any], prefix: str) -> Iterator[Row]:
    for name, spec in schema["properties"].items():
        key = prefix + name
        if "$ref" in spec:
            yield from _keys(_part(spec, parts), parts, f"{key}.")
            continue
        yield key, _type(spec), "required" if name in schema.get("required", ()) else _default(spec)
        if "$ref" in (items := _further(spec)):
            yield from _keys(_part(items, parts), parts, f"{key}.*.")
    if further := _further(schema):
        yield f"{prefix}*", _type(further), "none"


def _part(spec: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = parts[spec["$ref"].rpartition("/")[2]]
    return found


def _further(spec: dict[str, Any]) -> dict[str, Any]:
    """Type of keys that have no name of their own; empty where there are none, or all are other suites'."""
    further = spec.get("additionalProperties")
    return further if isinstance(further, dict) else {}


def _default(spec: dict[str, Any]) -> str:
    value = spec.get("default", {})  # only a map has a factory, which the schema leaves out
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def _type(spec: dict[str, Any]) -> str:
    if "anyOf" in spec:
        [one] = [other for other in spec["anyOf"] if other["type"] != "null"]
        return _type({**one, **{key: value for key, value in spec.items() if key != "anyOf"}})
    if "enum" in spec:
        *others, last = spec["enum"]
        return f"{', '.join(others)} or {last}"
    if isinstance(spec["type"], list):  # text, which YAML lets look like a number
        return "text"
    if spec["type"] == "object":
        at_least = f", at least {spec['minProperties']}" if "minProperties" in spec else ""
        return ("map" if "$ref" in _further(spec) else f"map of {_type(_further(spec))}") + at_least
    if spec["type"] == "array":
        return f"list of {_type(spec['items'])}"
    if spec["type"] == "string":
        return "secret" if spec.get("format") == "password" else "text"
    return ("bool" if spec["type"] == "boolean" else str(spec["type"])) + _range(spec)


def _range(spec: dict[str, Any]) -> str:
    least, most = spec.get("minimum", spec.get("ge")), spec.get("maximum", spec.get("le"))
    if most is not None:
        return f", {least}–{most}"
    return "" if least is None else f", ≥ {least}"


# --- configuration files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "model"), [("cluster.rst", ClusterConfig), ("aorta.rst", AortaConfig)])
def test_page_has_every_key_of_the_model_with_its_type_and_default(page: str, model: type[BaseModel]) -> None:
    assert sorted(documented_keys(page)) == sorted(model_keys(model))


def test_samples_of_the_pages_are_valid(tmp_path: Path) -> None:
    clusters, jobs = code_blocks("cluster.rst", "json"), code_blocks("aorta.rst", "yaml")
    assert len(clusters) == len(jobs) == 2
    for cluster_text, job_text in zip(clusters, jobs, strict=True):
        (tmp_path / "cluster.json").write_text(cluster_text, "utf-8")
        (tmp_path / "aorta.yaml").write_text(job_text, "utf-8")
        cluster = load_cluster(tmp_path / "cluster.json")
        assert cluster.warnings() == []
        assert load_aorta(tmp_path / "aorta.yaml", cluster).expected_results.limits()


# --- worked examples --------------------------------------------------------------------------------------


def numbers(name: str) -> dict[str, float]:
    """A table of results: name and value."""
    return {row[0]: float(row[1]) for row in table("metrics.rst", name)}


def assert_ratios(name: str, ratios: Ratios) -> None:
    assert numbers(name) == {name: round(value, 4) for name, value in ratios}


def test_gpu_example() -> None:
    buckets: dict[Bucket, list[metrics.Interval]] = {kind: [] for kind in get_args(Bucket)}
    for category, name, start, duration, bucket in table("metrics.rst", "gpu-example-events"):
        kind = bucket_of(category, name)
        assert kind == bucket
        buckets[kind].append((int(start) * 1000, (int(start) + int(duration)) * 1000))
    rows = metrics.timeline(buckets)
    assert rows is not None
    assert numbers("gpu-example-rows") == {name: value / 1000 for name, value in rows}
    assert_ratios("gpu-example-ratios", metrics.gpu_ratios(rows))


def test_names_of_kernels_that_copy_or_fill() -> None:
    """The list is whole: every word of the patterns is in it, and each name fits."""
    page = (REFERENCE / "metrics.rst").read_text("utf-8")
    rules = re.search(r"^2\. A ``kernel`` that copies(.*?)^3\.(.*?)^4\.", page, re.MULTILINE | re.DOTALL)
    assert rules
    copying, filling = (re.findall(r"``(MEMORY_\w+|__amd\w+)``", rule) for rule in rules.groups())
    assert (len(copying), len(filling)) == (7, 2)
    for names, bucket in ((copying, "memcpy"), (filling, "computation")):
        for name in names:
            assert bucket_of("kernel", name) == bucket_of("kernel", f"{name}.kd") == bucket
    assert {bucket_of("kernel", f"{name}X") for name in copying} == {"computation"}


def test_names_of_operators_that_compute() -> None:
    for name, computes in table("metrics.rst", "cpu-names"):
        assert _computes(json.dumps(name).encode()) == computes.startswith("yes"), name


def test_cpu_example() -> None:
    spans: dict[str, list[metrics.Interval]] = {"step": [], "operator": [], "collective": []}
    for kind, _, start, end in table("metrics.rst", "cpu-example-events"):
        spans[kind].append((int(start), int(end)))
    [step] = spans["step"]
    sums = metrics.cpu_sums(step, metrics.union(spans["collective"]), metrics.union(spans["operator"]))
    assert numbers("cpu-example-sums") == sums.model_dump()
    assert_ratios("cpu-example-ratios", metrics.cpu_ratios(sums))


def test_iteration_example() -> None:
    rows = [[int(cell) for cell in row] for row in table("metrics.rst", "steps-example")]
    steps = [Step(number=number, start_ns=start, duration_ns=duration) for number, start, duration in rows]
    iteration = metrics.iteration_ns(steps)
    assert numbers("steps-example-iteration") == {"Iteration time": iteration}
    assert iteration != fmean(step.duration_ns for step in steps)


def test_example_of_values_over_ranks() -> None:
    found = metrics.aggregates([_rank(*row) for row in table("metrics.rst", "ranks-example")]).model_dump()
    expected = numbers("ranks-example-aggregates")
    assert {name: _within(found, name) for name in expected} == pytest.approx(expected)


def _within(values: Any, path: str) -> Any:
    """A value some levels down: `step_ns.mean`, `kernels.0.total_ns`."""
    for name in path.split("."):
        values = values[int(name) if name.isdigit() else name]
    return values


def test_example_that_is_computed_by_hand() -> None:
    options = ParseOptions(linked=True, micro_idle_ns=5_000)
    traces = trace_set_of(REFERENCE / "example-trace.json", "rocm")
    [rank] = TorchTraceParser(options).parse(traces).ranks
    assert rank.quality.status == "complete"
    assert rank.exact_ns
    columns = [rank.exact_ns.all, rank.exact_ns.linked, *(step.gpu_ns for step in rank.steps)]
    for name, *expected in table("metrics.rst", "hand-rows"):
        assert [getattr(rows, name) for rows in columns] == [int(value) * 1000 for value in expected], name
    values = rank.model_dump()
    for name, expected_us, _ in table("metrics.rst", "hand-values"):
        assert _within(values, name) == float(expected_us) * 1000, name


def _rank(rank: str, iteration_ms: str, compute: str, overlap: str) -> RankMetrics:
    period = int(iteration_ms) * 10**6
    return RankMetrics(
        rank=int(rank),
        files=(),
        basis="gpu",
        quality=Quality(status="complete"),
        ratios=Ratios(
            compute=float(compute),
            comm=None,
            exposed_comm=None,
            overlap=None if overlap == "none" else float(overlap),
        ),
        steps=tuple(Step(number=n, start_ns=n * period, duration_ns=1) for n in range(2)),
    )
