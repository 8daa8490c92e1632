"""Records which experts a mixture-of-experts router picked, and delivers them to the scheduler.

A scheduler reads with a Reader and a Ledger; a worker captures with a Capturer, whose library is
loaded when it is first used. The names are those of the C++ library; doc/python.md has them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moetap._errors import (
    ArgumentError,
    CollectiveError,
    DeviceError,
    Error,
    MismatchError,
    OwnedError,
    RangeError,
    RowsNotPresent,
    StateError,
    StepFailed,
    SystemError,
    TimeoutError,
)
from moetap._reader import (
    BlockStore,
    BlockStoreStats,
    DroppedSteps,
    Endpoint,
    FillPlan,
    Hold,
    KvCacheGroup,
    Ledger,
    ModelShape,
    MovePlan,
    PendingRows,
    Reader,
    RequestReader,
    Routes,
    RoutesView,
    RowPlan,
    RowState,
    SegmentInfo,
    Topology,
    anchor_group,
    endpoint_of,
    endpoints_of,
    fill_rows,
    find_segments,
    load_blocks,
    move_rows,
    read_rows,
    reclaim,
    slots_of,
    store_block,
    version,
    view_rows,
    why_no_huge_pages,
)

__version__ = version()

if TYPE_CHECKING:
    from moetap._capturer import (
        Capturer,
        Device,
        DeviceArray,
        Graph,
        GraphGuard,
        StepGuard,
        Stream,
        open_device,
        why_no_cuda,
    )

__all__ = [
    "anchor_group",
    "ArgumentError",
    "BlockStore",
    "BlockStoreStats",
    "Capturer",
    "CollectiveError",
    "Device",
    "DeviceArray",
    "DeviceError",
    "DroppedSteps",
    "Endpoint",
    "endpoint_of",
    "endpoints_of",
    "Error",
    "fill_rows",
    "FillPlan",
    "find_segments",
    "Graph",
    "GraphGuard",
    "Hold",
    "KvCacheGroup",
    "Ledger",
    "load_blocks",
    "MismatchError",
    "ModelShape",
    "move_rows",
    "MovePlan",
    "open_device",
    "OwnedError",
    "PendingRows",
    "RangeError",
    "read_rows",
    "Reader",
    "reclaim",
    "RequestReader",
    "Routes",
    "RoutesView",
    "RowPlan",
    "RowsNotPresent",
    "RowState",
    "SegmentInfo",
    "slots_of",
    "StateError",
    "StepFailed",
    "StepGuard",
    "store_block",
    "Stream",
    "SystemError",
    "TimeoutError",
    "Topology",
    "version",
    "view_rows",
    "why_no_cuda",
    "why_no_huge_pages",
]

_WORKER = frozenset({
    "Capturer",
    "Device",
    "DeviceArray",
    "Graph",
    "GraphGuard",
    "StepGuard",
    "Stream",
    "open_device",
    "why_no_cuda",
})


def __getattr__(name: str) -> Any:
    """The worker's part, whose library a scheduler never loads."""
    if name in _WORKER:
        return getattr(import_module("moetap._capturer"), name)
    raise AttributeError(f"module 'moetap' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(set(__all__))
