# SPDX-License-Identifier: Apache-2.0
"""Connects the nodes of `--transport`, checks that their options agree, and reports failures."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import cpd.comm
from cpd.cli.errors import RunError, UsageError, users_mistakes
from cpd.cli.options import flat
from cpd.comm.launched import broken_promise, no_launcher
from cpd.parallel.launch import check_launched

if TYPE_CHECKING:
    from cpd.parallel.nodes import Ranks

T = TypeVar("T")


def checked_alone(options: Any, check: Callable[[], object]) -> None:
    """Raises UsageError for mistakes that can be found before nodes connect.

    Connecting imports torch, which takes seconds. For virtual nodes, the function calls `check`,
    which raises for wrong options. For the transport torch, it raises if no launcher has set
    torch's variables. (With several processes, `agreed` runs the checks after nodes connect.)
    """
    with users_mistakes():
        if options.transport == "virtual":
            check()
        elif options.transport == "torch":
            check_launched()


@contextmanager
def connected(options: Any, nodes: int | None) -> Iterator["Ranks"]:
    """A context with the nodes of `--transport`. A failure between processes raises RunError."""
    from cpd.parallel.nodes import open_ranks

    with ExitStack() as stack:
        try:
            with users_mistakes():
                opened = open_ranks(options.transport, nodes, options.timeout)
                ranks = stack.enter_context(_without_promises(opened))
                _check_not_alone(options.transport, options.nodes, ranks)
        except cpd.comm.TransportError as error:
            raise RunError(str(error)) from error
        with _failures_between(ranks):
            yield ranks


@contextmanager
def _without_promises(opened: AbstractContextManager[T]) -> Iterator[T]:
    """Enters the context that opens a communicator, `opened`, and hides its RuntimeWarning.

    The warning says that the launcher announced more ranks than MPI started. `_check_not_alone`
    raises an error in this case, so the warning is not needed.
    """
    with ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            entered = stack.enter_context(opened)
        yield entered


def _check_not_alone(transport: str, nodes: int | None, ranks: "Ranks") -> None:
    """Raises ValueError if MPI has fewer ranks than the launcher announced.

    Also raises it for a single rank, unless --nodes is 1 or a launcher started one process.
    """
    if transport != "mpi" or (ranks.world == 1 and nodes == 1):
        return
    why = broken_promise(ranks.world) or (no_launcher() if ranks.world == 1 else "")
    if why:
        alone = "; one rank alone is --nodes 1" if ranks.world == 1 else ""
        raise ValueError(f"transport mpi: {why} (mpirun -n N cpd … starts N ranks{alone})")


@contextmanager
def _failures_between(ranks: "Ranks") -> Iterator[None]:
    """A context in which an error names the rank that reports it.

    Failures between processes become a RunError. Other errors get a note.
    """
    from cpd.comm import Mismatch, RankLost, TransportError
    from cpd.parallel.nodes import RanksDiffer

    try:
        yield
    except (RankLost, Mismatch, TransportError, RanksDiffer) as error:
        raise RunError(f"rank {ranks.mine[0]}: {error}") from error
    except Exception as error:
        if len(ranks.mine) < ranks.world:
            error.add_note(f"on rank {ranks.mine[0]} of {ranks.world}")
        raise


def agreed(ranks: "Ranks", options: Any, make: Callable[[], T]) -> T | None:
    """Returns the result of `make` if it succeeds in all processes and all have the same options.

    Otherwise the first process with a mistake raises UsageError, and the other processes return
    None. The other processes then end without an error. So the launcher does not stop the process
    that reports the mistake.
    """
    from cpd.parallel.nodes import gather_integers

    result, mistake = None, None
    try:
        with users_mistakes():
            result = make()
    except UsageError as error:
        mistake = error
    own = [int(mistake is not None), _digest(options)]
    reports = gather_integers(ranks, [own for _ in ranks.mine])
    mistaken = [rank for rank, (flag, _) in enumerate(reports) if flag]
    others = [rank for rank, (_, digest) in enumerate(reports) if digest != reports[0][1]]
    if not (mistaken or others):
        return result
    _wait_for_all(ranks)
    if mistake is not None and mistaken[0] in ranks.mine:
        raise mistake if mistaken[0] == 0 else UsageError(f"rank {mistaken[0]}: {mistake}")
    if not mistaken and 0 in ranks.mine:
        raise UsageError(f"rank {others[0]} was started with other options than rank 0")
    return None


def _wait_for_all(ranks: "Ranks") -> None:
    """Waits until every process has read the gathered data.

    After this call, a process may end with an error, and the other processes do not report it as
    lost.
    """
    from cpd.comm import RankLost, TransportError
    from cpd.parallel.nodes import gather_integers

    with suppress(RankLost, TransportError):
        gather_integers(ranks, [[0] for _ in ranks.mine])


def _digest(options: Any) -> int:
    """Returns a 64-bit hash of the options that determine the result."""
    apart = ("run", "json", "csv", "plot", "save_gradients", "gradients")
    deciding = sorted(item for item in vars(flat(options)).items() if item[0] not in apart)
    return int.from_bytes(hashlib.sha256(repr(deciding).encode()).digest()[:8])
