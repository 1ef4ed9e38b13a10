"""The pure parts of the bundled trainer: settings, refusals, names. They need neither PyTorch nor PyYAML."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cvs

FOLDER = Path(cvs.__file__).parent / "workloads" / "aorta"
SCRIPT = FOLDER / "train.py"
SAMPLE = FOLDER / "config" / "distributed.yaml"


def load_script(*blocked: str) -> Iterator[ModuleType]:
    """The script as a module, as an interpreter without the `blocked` packages sees it."""
    spec = importlib.util.spec_from_file_location("aorta_train", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name in blocked:
            patch.setitem(sys.modules, name, None)
        # Dataclasses look their module up there.
        patch.setitem(sys.modules, "aorta_train", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    yield from load_script("torch")


@pytest.fixture
def bare_train() -> Iterator[ModuleType]:
    yield from load_script("torch", "yaml")


def job(train: ModuleType, *pairs: str, config: dict[str, Any] | None = None, world_size: int = 2) -> Any:
    config = config or {}
    train.override(config, pairs)
    return train.job_of(config, world_size)


# --- what the script may rely on --------------------------------------------------------------------------


def test_syntax_is_that_of_python_3_8() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))


def test_imports_nothing_but_the_standard_library_pytorch_and_pyyaml() -> None:
    nodes = list(ast.walk(ast.parse(SCRIPT.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in names}
    assert packages - sys.stdlib_module_names == {"torch", "yaml"}


# --- config -----------------------------------------------------------------------------------------------


def test_sample_shows_every_setting_with_its_default(train: ModuleType) -> None:
    sample = train.read_config(SAMPLE)
    assert train.job_of(sample, 2) == train.job_of({}, 2)
    shown = {f"{section}.{key}" for section, keys in sample.items() for key in keys or {}}
    assert shown == {name for name in train.known_settings() if not name.startswith("inject.")}


def test_keys_of_other_trainers_are_ignored(train: ModuleType) -> None:
    config = {"compile": {"enabled": True}, "training": {"epochs": 3, "max_steps": 9}, "fsdp": None}
    assert train.job_of(config, 2).training.max_steps == 9


@pytest.mark.parametrize(
    "section", [{"mixed_precision": "fp16", "reshard_after_forward": None}, "FULL_SHARD"]
)
def test_fsdp_section_is_not_judged_in_other_modes(train: ModuleType, section: Any) -> None:
    assert train.job_of({"fsdp": section}, 2) == train.job_of({}, 2)


def test_fsdp_section_of_other_trainers_may_hold_more(train: ModuleType) -> None:
    section = {"sharding_strategy": "FULL_SHARD", "mixed_precision": "bf16", "reshard_after_forward": False}
    made = train.job_of({"distributed": {"mode": "fsdp"}, "fsdp": section}, 2)
    assert asdict(made.fsdp) == {"mixed_precision": "bf16", "reshard_after_forward": False}


def test_config_without_pyyaml_may_be_json(bare_train: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"training": {"max_steps": 9}}))
    config = bare_train.read_config(path)
    bare_train.override(config, ["profiling.use_gzip=true", "training.output_dir=here"])
    made = bare_train.job_of(config, 2)
    assert (made.training.max_steps, made.training.output_dir, made.profiling.use_gzip) == (9, "here", True)


def test_yaml_without_pyyaml_is_refused(bare_train: ModuleType) -> None:
    with pytest.raises(bare_train.UsageError, match=r"distributed\.yaml: .* has no PyYAML: .*\.json"):
        bare_train.read_config(SAMPLE)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("job.yaml", "training: [1", r"job\.yaml: while parsing .* line 1"),
        ("job.json", '{"training": }', r"job\.json: Expecting value: line 1 column 14"),
        ("job.yaml", "- training", r"job\.yaml: expected a mapping of sections, found \['training'\]"),
        ("job.yaml", "", r"job\.yaml: expected a mapping of sections, found None"),
        ("job.yaml", None, r"job\.yaml: .*No such file or directory"),
    ],
)
def test_bad_file_is_one_line(
    train: ModuleType, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(train.UsageError, match=message) as refusal:
        train.read_config(tmp_path / name)
    assert "\n" not in str(refusal.value)


# --- overrides --------------------------------------------------------------------------------------------


def test_overrides_are_yaml_scalars_and_win_over_the_file(train: ModuleType) -> None:
    made = job(
        train,
        *("training.max_steps=20", "profiling.record_shapes=false", "distributed.timeout_seconds=25"),
        *("optimizer.lr=1e-3", "training.output_dir=2024-01-01", "distributed.mode=manual"),
        config={"training": {"max_steps": 9, "batch_size": 3}},
    )
    assert asdict(made.training) == {"max_steps": 20, "batch_size": 3, "output_dir": "2024-01-01"}
    assert made.profiling.record_shapes is False
    assert made.distributed.timeout_seconds == 25.0
    assert made.distributed.mode == "manual"
    assert made.optimizer.lr == 0.001


@pytest.mark.parametrize(
    ("pair", "hint"), [("training.max_step=3", r" \(did you mean training\.max_steps\?\)"), ("epochs=2", "$")]
)
def test_override_that_would_have_no_effect_is_refused(train: ModuleType, pair: str, hint: str) -> None:
    with pytest.raises(train.UsageError, match=rf"--override {pair.partition('=')[0]}: no such key{hint}"):
        train.override({}, [pair])


@pytest.mark.parametrize(
    ("config", "pairs", "refused"),
    [
        ({}, "fsdp.mixed_precision=none", "fsdp.mixed_precision has no effect with distributed.mode ddp"),
        (
            {"distributed": {"mode": "fsdp"}},
            "fsdp.reshard_after_forward=false distributed.mode=manual",
            "fsdp.reshard_after_forward has no effect with distributed.mode manual",
        ),
        (
            {"distributed": {"mode": "fsdp"}},
            "distributed.bucket_cap_mb=25",
            "distributed.bucket_cap_mb has no effect with distributed.mode fsdp",
        ),
    ],
)
def test_override_that_only_another_mode_heeds_is_refused(
    train: ModuleType, config: dict[str, Any], pairs: str, refused: str
) -> None:
    with pytest.raises(train.UsageError, match=rf"^--override {re.escape(refused)}: leave it out, or add "):
        train.override(config, pairs.split(" "))


def test_override_of_the_mode_may_come_after_that_of_its_keys(train: ModuleType) -> None:
    pairs = ("fsdp.mixed_precision=bf16", "fsdp.reshard_after_forward=false", "distributed.mode=fsdp")
    assert asdict(job(train, *pairs).fsdp) == {"mixed_precision": "bf16", "reshard_after_forward": False}


def test_second_group_of_overrides_is_refused(train: ModuleType) -> None:
    one = train.parse_arguments(["--config", "f", "--override", "a.b=1", "a.c=2", "--enable-rocm-metrics"])
    assert one.override == [["a.b=1", "a.c=2"]]
    with pytest.raises(train.UsageError, match="--override is given twice"):
        train.parse_arguments(["--config", "f", "--override", "a.b=1", "--override", "a.c=2"])


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("training.max_steps", r"--override: expected section\.key=value, found 'training\.max_steps'"),
        ("training.max_steps=many", r"training\.max_steps: expected a whole number, found 'many'"),
        ("training.max_steps=8.0", r"training\.max_steps: expected a whole number, found 8\.0"),
        ("training.max_steps=true", r"training\.max_steps: expected a whole number, found True"),
        ("training.max_steps=0", r"training\.max_steps: expected at least 1, found 0"),
        ("training.max_steps=", r"training\.max_steps: expected a whole number, found None"),
        ("training.output_dir=", r"training\.output_dir: expected a text, found ''"),
        ("optimizer.lr=.nan", r"optimizer\.lr: expected a number, found nan"),
        ("optimizer.lr=true", r"optimizer\.lr: expected a number, found True"),
        ("optimizer.lr=2024-13-45", r"optimizer\.lr: expected a number, found '2024-13-45'"),
        ("profiling.use_gzip=1", r"profiling\.use_gzip: expected true or false, found 1"),
        ("distributed.mode=hsdp", r"distributed\.mode: expected one of ddp, fsdp, manual, found 'hsdp'"),
        ("fsdp.shard=1", r"--override fsdp\.shard: no such key"),
        (
            "distributed.mode=fsdp fsdp.mixed_precision=fp16",
            r"fsdp\.mixed_precision: expected one of none, bf16",
        ),
        (
            "distributed.mode=fsdp fsdp.reshard_after_forward=2",
            r"fsdp\.reshard_.*: expected true or false, found 2",
        ),
        ("profiling.warmup=9", r"wait \+ warmup = 10 leave nothing of training\.max_steps 8 to trace"),
        ("profiling.tensorboard=false", r"profiling: no trace is asked for"),
        ("profiling.trace_filename=../t.json", r"profiling\.trace_filename: .*found '\.\./t\.json'"),
        ("inject.knd=kill", r"inject\.knd: no such key, known are kind, rank, step and ms"),
        ("inject.kind=explode", r"inject\.kind: expected one of slow_compute, .*, found 'explode'"),
        ("inject.rank=1", r"inject\.rank is set, but not inject\.kind"),
        ("inject.kind=kill inject.step=1", r"inject\.kind kill needs inject\.rank"),
        ("inject.kind=raise inject.rank=1", r"inject\.kind raise needs inject\.step"),
        ("inject.kind=slow_sleep inject.rank=1", r"inject\.kind slow_sleep needs inject\.ms"),
        ("inject.kind=slow_sleep inject.rank=1 inject.ms=0", r"inject\.ms: expected at least 1, found 0"),
        ("inject.kind=hang inject.rank=2 inject.step=1", r"inject\.rank 2 .* the last rank is 1"),
        ("inject.kind=hang inject.rank=-1 inject.step=1", r"inject\.rank: expected at least 0, found -1"),
        ("inject.kind=hang inject.rank=1 inject.step=8", r"inject\.step 8 .* the last step is 7"),
        ("inject.kind=abort_after_end inject.rank=1 inject.step=1", r"inject\.step has no effect"),
        ("inject.kind=extra_allreduce inject.rank=1", r"inject\.rank has no effect"),
        ("inject.kind=kill inject.rank=1 inject.step=1 inject.ms=5", r"inject\.ms has no effect"),
    ],
)
def test_refusal_names_the_key_and_what_was_found(train: ModuleType, pairs: str, message: str) -> None:
    with pytest.raises(train.UsageError, match=message) as refusal:
        job(train, *pairs.split(" "))
    assert "\n" not in str(refusal.value)


def test_section_that_is_no_mapping_is_refused(train: ModuleType) -> None:
    with pytest.raises(train.UsageError, match=r"^inject: expected a mapping, found 'kill'$"):
        train.job_of({"inject": "kill"}, 2)


def test_profiling_is_not_judged_where_it_is_off(train: ModuleType) -> None:
    assert job(train, "training.max_steps=1", "profiling.enabled=false").training.max_steps == 1


@pytest.mark.parametrize(
    ("pairs", "rank", "step", "ms"),
    [
        ("inject.kind=slow_compute inject.rank=1 inject.ms=60", 1, None, 60.0),
        ("inject.kind=slow_sleep inject.rank=1 inject.ms=0.5e2 inject.step=7", 1, 7, 50.0),
        ("inject.kind=extra_allreduce", None, None, None),
        ("inject.kind=raise inject.rank=1 inject.step=7", 1, 7, None),
        ("inject.kind=kill inject.rank=0 inject.step=0", 0, 0, None),
        ("inject.kind=hang inject.rank=0 inject.step=0", 0, 0, None),
        ("inject.kind=catch_sigterm inject.rank=1", 1, None, None),
        ("inject.kind=abort_after_end inject.rank=1", 1, None, None),
    ],
)
def test_every_kind_of_fault_is_taken_with_what_it_needs(
    train: ModuleType, pairs: str, rank: int | None, step: int | None, ms: float | None
) -> None:
    inject = job(train, *pairs.split(" ")).inject
    assert (inject.rank, inject.step, inject.ms) == (rank, step, ms)


# --- place and names --------------------------------------------------------------------------------------

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def test_place_comes_from_the_environment(train: ModuleType) -> None:
    assert train.place_of(TORCHRUN) == train.Place(rank=3, local_rank=1, world_size=4)


@pytest.mark.parametrize("name", TORCHRUN)
def test_without_torchrun_nothing_starts(train: ModuleType, name: str) -> None:
    environ = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(train.UsageError, match=rf"^{name} is not set .* torchrun"):
        train.place_of(environ)


@pytest.mark.parametrize(
    ("pairs", "names"),
    [
        ("", ["host_1.5.pt.trace.json"]),
        ("profiling.use_gzip=true", ["host_1.5.pt.trace.json.gz"]),
        ("profiling.chrome_trace=true", ["host_1.5.pt.trace.json", "trace.json"]),
        ("profiling.chrome_trace=true profiling.tensorboard=false profiling.repeat=2", ["trace_step7.json"]),
        (
            "profiling.chrome_trace=true profiling.use_gzip=true profiling.trace_filename=t.json",
            ["host_1.5.pt.trace.json.gz", "t.json.gz"],
        ),
    ],
)
def test_trace_names(train: ModuleType, pairs: str, names: list[str]) -> None:
    profiling = job(train, *pairs.split()).profiling
    assert train.trace_names(profiling, "host_1", now_ns=5, step=7) == names
