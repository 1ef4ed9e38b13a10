"""One trace to one rank's metrics, and nothing of its events after that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from cvs import metrics
from cvs.kernels import KernelClasses
from cvs.models import Basis, CpuSums, ExactNs, Quality, RankMetrics, Ratios, Step, Timeline
from cvs.parsers.other_json import named
from cvs.parsers.trace_bytes import Stream
from cvs.parsers.trace_document import TraceDocument, read_document

_TOP_KERNELS = 20
"""So many names of kernels are kept."""


@dataclass(frozen=True)
class Question:
    """What is wanted of a trace."""

    basis: Basis
    linked: bool = False
    micro_idle_ns: int | None = None
    communication_kernels: tuple[str, ...] = ()


def read_trace(open_it: Callable[[], AbstractContextManager[Stream]], question: Question) -> TraceDocument:
    """Document of a trace with its metrics, without its intervals; never an exception."""
    classes = KernelClasses(question.communication_kernels)
    try:
        with open_it() as stream:
            document = read_document(
                stream, question.basis, linked=question.linked, bucket_of=classes.bucket_of
            )
            document = named(document, stream)
    except OSError as error:
        return _unreadable(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except MemoryError:
        return _unreadable("more than the memory here can hold")
    return replace(
        document,
        measured=_measured(document, question),
        buckets={},
        linked=None,
        by_step={},
        kernels=(),
        unused_patterns=classes.unused(kernel.name for kernel in document.kernels),
        comm=(),
        compute=(),
    )


def _unreadable(cause: str) -> TraceDocument:
    return TraceDocument(quality=Quality(status="unreadable", cause=cause))


def _measured(document: TraceDocument, question: Question) -> RankMetrics:
    """The metrics of a document, for a rank that is not known yet."""
    buckets = document.buckets
    steps = _steps(document, question.basis)
    rows = metrics.timeline(buckets)
    total = metrics.cpu_total([step.cpu_ns for step in steps if step.cpu_ns])
    idle = metrics.idle_split(buckets, question.micro_idle_ns) if rows and question.micro_idle_ns else None
    return RankMetrics(
        rank=document.rank,
        world_size=document.world_size,
        backend=document.backend,
        files=(),
        basis=question.basis,
        quality=document.quality,
        exact_ns=ExactNs(all=rows, linked=metrics.timeline(document.linked or {})) if rows else None,
        cpu_ns=total,
        counts=metrics.counts(buckets) if rows else None,
        ratios=_ratios(rows, total),
        steps=steps,
        iteration_ns=metrics.iteration_ns(steps),
        step_ns=metrics.spread([step.duration_ns for step in steps]),
        period_ns=metrics.spread(metrics.periods(steps)),
        micro_idle_ns=idle and idle[0],
        macro_idle_ns=idle and idle[1],
        kernel_time_ns=metrics.kernel_time(buckets) if rows else None,
        kernels=tuple(document.kernels[:_TOP_KERNELS]),
        memory_peak_bytes=dict(document.memory_peak_bytes),
        start_ns=document.start_ns,
    )


def _ratios(rows: Timeline | None, total: CpuSums | None) -> Ratios | None:
    if rows:
        return metrics.gpu_ratios(rows)
    return metrics.cpu_ratios(total) if total else None


def _steps(document: TraceDocument, basis: Basis) -> tuple[Step, ...]:
    comm, compute = metrics.union(document.comm), metrics.union(document.compute)

    def step(number: int, span: metrics.Interval) -> Step:
        launched = document.by_step.get(number, {})
        rows = metrics.timeline(launched)
        return Step(
            number=number,
            start_ns=document.base_ns + span[0],
            duration_ns=metrics.length([span]),
            cpu_ns=metrics.cpu_sums(span, comm, compute) if basis == "cpu" else None,
            gpu_ns=rows,
            counts=metrics.counts(launched) if rows else None,
        )

    return tuple(step(number, span) for number, span in document.steps.items())
