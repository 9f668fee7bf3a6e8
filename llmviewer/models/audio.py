"""Seconds of sound in place of tokens: an encoder of mel frames reads windows of one length (Whisper).

Windows of 30 s, shorter sound padded, and a frame every 10 ms: Whisper, arXiv 2212.04356, sections 2.1 and 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.parsing import duration
from llmviewer.language.option import Kind, Option, Panel
from llmviewer.layers.encoder import FRAMES_PER_POSITION, Frames
from llmviewer.models.model import Model

AUDIO: Mapping[str, Option] = {
    "audio": Option(
        kind=Kind.TIME, help="Sound of each request, for Whisper, in place of --input-len: 30s.", panel=Panel.WORKLOAD
    )
}
#: Time from one mel frame to the next [s].
FRAME_S = 0.01


@frozen
class Heard:
    """Sound as a model reads it.  positions: of its encoder.  window_s: of which the sound is a part [s]."""

    seconds: float
    positions: int
    window_s: float

    @property
    def note(self) -> str:
        """Description of the sound that is read."""
        padded = "" if self.seconds == self.window_s else f", padded to a window of {self.window_s:g} s"
        return f"{self.seconds:g} s of sound{padded}: {self.positions:,} positions of the encoder are the input"


def heard(model: Model, text: str) -> Heard:
    """The sound of --audio as a model reads it.  Raises UserError."""
    frames = None if model.encoder is None else model.encoder.embedding
    if not isinstance(frames, Frames):
        raise UserError(
            f"--audio: {model.name} has no encoder of sound that is modelled; model types with one: whisper"
        )
    seconds, window_s = duration("audio", text), FRAME_S * FRAMES_PER_POSITION * frames.positions
    if not 0.0 < seconds < float("inf"):
        raise UserError(f"--audio is {seconds:g} s; allowed: a time above 0, such as 30s")
    if seconds > window_s:
        parts = f"{model.name} reads windows of {window_s:g} s; give --audio {window_s:g}s"
        raise UserError(f"--audio is {seconds:g} s; {parts} --batch-size {ceil(seconds / window_s)}")
    return Heard(seconds=seconds, positions=frames.positions, window_s=window_s)
