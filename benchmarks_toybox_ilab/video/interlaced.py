"""Make whole pictures of interlaced video, whose frames hold two moments.

The odd lines of such a frame were taken after the even ones, or before, so that what
moves has combs. DV, DVDs, television and camcorders (AVCHD) record so.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

_LEAST_LINES = 4  # of a picture that the filter takes


class Deinterlacer:
    """Deinterlace the frames that say that they are interlaced; leave the others.

    A frame needs the one after it, so that frames may come out one later than they go
    in, each with its time. FFmpeg's filter bwdif takes one field of each frame, and
    finds the lines between from both fields of it and of its neighbours.
    """

    def __init__(self) -> None:
        self._graph: Any = None
        self._shape: tuple[int, int, str] | None = None  # that the graph takes
        self._times: deque[float] = deque()  # of the frames in the graph

    def __call__(self, time: float, frame: Any) -> Iterator[tuple[float, Any]]:
        """Take a frame of PyAV and its time; yield those that are ready."""
        shape = (frame.width, frame.height, frame.format.name)
        if self._graph is not None and shape != self._shape:
            yield from self.rest()
        if self._graph is None:
            if not frame.interlaced_frame or frame.height < _LEAST_LINES:
                yield time, frame
                return
            self._graph = _deinterlacing_graph(frame)
            self._shape = shape
        self._times.append(time)
        self._graph.push(frame)
        yield from self._ready_frames()

    def rest(self) -> Iterator[tuple[float, Any]]:
        """Yield the video frames that are still held, after the last one went in."""
        if self._graph is not None:
            self._graph.push(None)  # the end of the frames
            yield from self._ready_frames()
            self._graph = None

    def _ready_frames(self) -> Iterator[tuple[float, Any]]:
        """Yield the video frames that the filter gives by now, with their times."""
        from av.error import BlockingIOError, EOFError

        while self._times:
            try:
                frame = self._graph.pull()
            except (BlockingIOError, EOFError):  # it waits for the next frame
                return
            yield self._times.popleft(), frame


def _deinterlacing_graph(frame: Any) -> Any:
    """Return a graph of FFmpeg's filters that deinterlaces frames like this one.

    Args:
        frame: A frame of PyAV; those to come have its size and pixel format.
    """
    from av.filter import Graph

    graph = Graph()
    if hasattr(graph, "threads"):  # in newer versions of PyAV
        graph.threads = 1
    source = graph.add_buffer(
        width=frame.width,
        height=frame.height,
        format=frame.format.name,
        time_base=frame.time_base,
    )
    filtered = graph.add("bwdif", "mode=send_frame:deint=interlaced")
    sink = graph.add("buffersink")
    source.link_to(filtered)
    filtered.link_to(sink)
    graph.configure()
    return graph
