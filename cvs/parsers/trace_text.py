"""From the bytes of one trace to its events: unpacking, decoding, mending what needs no guess.

The text is decoded as a whole; `read_events` hands the events on in portions, so that a reader that decodes
window by window can take its place.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from string import ascii_letters, digits
from typing import BinaryIO, Generic, TypeVar

import msgspec

from cvs.errors import TraceError
from cvs.kernels import GPU_CATEGORIES
from cvs.models import Quality, QualityStatus

NO_TRACE_EVENTS = "no traceEvents: not a profiler trace"
"""What is wrong with a JSON object that is no trace at all."""

ANNOTATION = "user_annotation"
"""Category of ranges on the host that a program names: steps, and gloo's collectives."""

Text = bytes | bytearray


@dataclass(slots=True)
class Losses:
    """What could not be read of one file, gathered on the way."""

    cut: str | None = None
    """Why the text ends early, if it does."""
    vital: bool = False
    """Whether something that counts may be lost."""
    repairs: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def drop(self, cause: str, *, vital: bool) -> None:
        """Note an event that does not count because of `cause`."""
        self.dropped[cause] += 1
        self.vital |= vital

    def quality(self, status: QualityStatus = "complete", cause: str | None = None) -> Quality:
        """Quality of the file, where `status` and its cause are what the events that were read deserve."""
        if self.cut:
            status = "truncated"
        elif self.vital:
            status = "incomplete"
        elif status == "complete" and (self.repairs or self.dropped):
            status = "repaired"
        dropped = dict(sorted(self.dropped.items()))
        causes = [self.cut, *(f"{n} x {what}" for what, n in dropped.items()), cause, *self.repairs]
        return Quality(status=status, cause="; ".join(filter(None, causes)) or None, dropped=dropped)


# --- bytes ------------------------------------------------------------------------------------------------

_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 18


def _unpacked(stream: BinaryIO, losses: Losses) -> Text:
    """The whole text; whether it is packed its first two bytes say, not the file's name.

    Raises: TraceError: a gzip stream with a decoding error or a wrong checksum: none of it can be trusted.
    """
    packed = stream.read(len(_GZIP)) == _GZIP
    stream.seek(0)
    if not packed:
        return stream.read()
    try:
        return _gunzip(iter(partial(stream.read, _BLOCK), b""), losses)
    except zlib.error as error:
        raise TraceError(f"gzip: {error}") from None


def _gunzip(blocks: Iterable[bytes], losses: Losses) -> bytearray:
    text, member = bytearray(), None
    for packed in blocks:
        while packed:
            if member is None:
                packed = packed.lstrip(b"\0")  # padding, as some media need it
                if not packed:
                    break
                member = zlib.decompressobj(wbits=31)
            text += member.decompress(packed)
            packed = member.unused_data
            if member.eof:
                member = None
    if member is not None:
        losses.cut = "cut off: the gzip stream ends early"
    return text


# --- text -------------------------------------------------------------------------------------------------

_BOM = b"\xef\xbb\xbf"
_REPLACED = "\ufffd"
_REPLACED_IN_KEY = re.compile(_REPLACED.encode() + rb'[^"]*"\s*:')


def _as_utf8(text: Text, losses: Losses) -> Text:
    """The text with all that is no UTF-8 replaced by U+FFFD: the decoder does not check what it skips."""
    fault = _utf8_fault(text)
    if fault is None:
        return text
    losses.repairs.append(f"invalid UTF-8 (after byte {fault}) replaced")
    mended = str(text, "utf-8", "replace").encode()
    losses.vital |= bool(_REPLACED_IN_KEY.search(mended))
    return mended


def _utf8_fault(text: Text) -> int | None:
    """Start of the first block with invalid UTF-8; a whole text as str could take four times its memory."""
    if text.isascii():
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(text), _BLOCK):
        try:
            decoder.decode(text[at : at + _BLOCK], final=at + _BLOCK >= len(text))
        except UnicodeDecodeError:
            return at
    return None


_STRING_OR_BARE = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
    rb"|(?P<bare>[+-]?\b(?:nan|inf|infinity)\b)",
    re.IGNORECASE,
)
"""A string (perhaps cut off), so that what it holds is passed over, or a number that JSON does not know."""


def _without_bare_numbers(text: Text, losses: Losses) -> Text:
    """The text with null for each bare NaN, Infinity, inf or nan outside strings."""
    pieces: list[Text] = []
    at = 0
    for match in _STRING_OR_BARE.finditer(text):
        if match["bare"]:
            pieces += [text[at : match.start()], b"null"]
            at = match.end()
    if not pieces:
        return text
    losses.repairs.append(f"{len(pieces) // 2} x bare NaN or Infinity read as null")
    return b"".join([*pieces, text[at:]])


# --- decoding ---------------------------------------------------------------------------------------------

ABSENT = msgspec.Raw(b"")
"""Text of a field that is not there."""

Label = int | float | str | None
"""Identity of a process, device or thread, as traces write it."""


class Event(msgspec.Struct, gc=False):
    """Fields of an event that the `gpu` basis reads; the others are checked and skipped."""

    cat: str | None = None
    name: str | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    pid: Label = None


E = TypeVar("E", bound=Event)
_D = TypeVar("_D")


class Document(msgspec.Struct, Generic[_D], rename="camel"):
    """Top level of a trace; a `traceEvents` further down is another thing."""

    trace_events: list[_D] | None = None
    distributed_info: msgspec.Raw = ABSENT
    base_time_nanoseconds: msgspec.Raw = ABSENT


_VITAL = re.compile(rb'"(?:kernel|gpu_memcpy|gpu_memset)"|ProfilerStep')
"""A lost event is harmless unless its text names one of these."""


class Decoders(Generic[E]):
    """Decoders of one kind of event, in a document and by itself."""

    _raw = msgspec.json.Decoder(Document[msgspec.Raw])

    def __init__(self, event: type[E]) -> None:
        self._document = msgspec.json.Decoder(Document[event])  # type: ignore[valid-type]
        self._event = msgspec.json.Decoder(event)

    def decode(self, text: Text, losses: Losses) -> Document[E]:
        """Decode a document; an event with a field of unexpected type costs that event only.

        Raises: msgspec.DecodeError: not JSON. TraceError: JSON, but no trace.
        """
        try:
            return self._document.decode(text)
        except msgspec.ValidationError:
            return self._decode_singly(text, losses)

    def _decode_singly(self, text: Text, losses: Losses) -> Document[E]:
        try:
            document = self._raw.decode(text)
        except msgspec.ValidationError as error:
            raise TraceError(f"not a profiler trace: {error}") from None
        events = []
        for raw in document.trace_events or ():
            try:
                events.append(self._event.decode(raw))
            except msgspec.ValidationError:
                losses.drop("event of unexpected type", vital=bool(_VITAL.search(bytes(raw))))
        return Document(events, document.distributed_info, document.base_time_nanoseconds)


def read_events(
    stream: BinaryIO, decoders: Decoders[E], losses: Losses, take: Callable[[Iterable[E]], None]
) -> Document[E]:
    """Hand every event of the file to `take` and return the header, noting in `losses` what was not read.

    Raises: TraceError: nothing in the file can be trusted, or there is nothing in it.
    """
    try:
        document = _decoded(_unpacked(stream, losses), decoders, losses)
    except RecursionError:
        raise TraceError("not JSON that can be read: nested too deeply") from None
    if document.trace_events is None:
        raise TraceError(NO_TRACE_EVENTS)
    take(document.trace_events)
    return document


def _decoded(text: Text, decoders: Decoders[E], losses: Losses) -> Document[E]:
    if not text or text.isspace():
        raise TraceError(losses.cut or "empty file")
    if text.startswith(_BOM):
        losses.repairs.append("byte-order mark skipped")
        text = text[len(_BOM) :]
    if re.match(rb"\s*\[", text):
        raise TraceError("the top level is a list, not an object with traceEvents")
    mended = _as_utf8(text, losses)
    document = _decoded_json(mended, partial(decoders.decode, losses=losses), losses)
    if mended is not text:
        losses.vital |= any(map(_is_obscured, document.trace_events or ()))
    return document


def _is_obscured(event: Event) -> bool:
    """Whether replaced bytes may hide what the event is."""
    category = event.cat or ""
    counts = category in GPU_CATEGORIES or category == ANNOTATION
    return _REPLACED in category or (counts and _REPLACED in (event.name or ""))


def _decoded_json(text: Text, decode: Callable[[Text], Document[E]], losses: Losses) -> Document[E]:
    try:
        return decode(text)
    except msgspec.DecodeError:
        text = _without_bare_numbers(text, losses)
    try:
        return decode(text)
    except msgspec.DecodeError as error:
        if not _is_cut(text, decode):
            raise TraceError(f"not JSON: {error}") from None
    losses.cut = losses.cut or "cut off"
    return _before_cut(text, decode)


# --- text that ends early ---------------------------------------------------------------------------------

_WORD = b"+-." + (digits + ascii_letters).encode()
_TRIES = 64


def _is_cut(text: Text, decode: Callable[[Text], Document[E]]) -> bool:
    """Whether all that is wrong with the text is that it ends too soon."""
    try:
        # A number or word that the cut went through is wrong in itself; without it the text just ends.
        decode(text.rstrip(_WORD))
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    return False


def _before_cut(text: Text, decode: Callable[[Text], Document[E]]) -> Document[E]:
    """Decode what stands before the last brace that closes an event.

    The text up to a brace, closed by `]}`, decodes only if that brace ends an element of a top-level list.
    The braces in the event that was cut come first: `_TRIES` is how many its arguments may hold.
    """
    end = len(text)
    for _ in range(_TRIES):
        end = text.rfind(b"}", 0, end)
        if end < 0:
            break
        try:
            document = decode(text[: end + 1] + b"]}")
        except msgspec.DecodeError:
            continue
        if document.trace_events is not None:
            return document
        break
    raise TraceError("cut off before the first complete event")
