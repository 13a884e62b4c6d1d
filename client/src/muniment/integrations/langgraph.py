"""`govern`: a LangGraph checkpointer whose threads can be erased without rewriting anybody else's.

    saver = govern(storage="one-file-a-thread", folder="/srv/agent/threads")
    saver = govern(PostgresSaver(connection), storage="sealed", folder="/srv/agent/keys")
    app = graph.compile(checkpointer=saver)
    app.invoke(question, {"configurable": {"thread_id": "t-71", "user_id": "user_18"}})

- `one-file-a-thread`: each thread is a SQLite database of its own, written by LangGraph's own `SqliteSaver`. The
  service erases it by unlinking (store kind `langgraph` with `folder`); nothing has to be freed afterwards.
- `sealed`: any saver; values, writes and metadata are sealed under a key of the thread, one file each, before the saver
  sees them. The service destroys the key and deletes the rows (kind `langgraph` with `url` and `keys`); what is left in
  free pages, logs and backups of the database opens no more. Needs `muniment[sealed]`.

With `register=Registering(...)` the service is told of each thread, in the background, so that a request for erasure
finds it; see `muniment.thread_register`. Without it somebody registers them: `Client.artifacts`, or `scan --register`.

Guarantees: a thread begins only with somebody it belongs to; what was erased is refused with `ThreadErased`, in every
process that uses the folder, in the middle of a run too; without its key, or altered, nothing is returned
(`KeyMissing`, `SealBroken`). Thread and checkpoint ids, names of channels and tasks, and sizes stay readable: use
random ids. Threads that were stored before sealing began stay readable, and their erasure has to rewrite the database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver

from muniment.integrations.langgraph_files import ThreadFiles
from muniment.integrations.langgraph_saver import GovernedSaver, SubjectFrom, Whose
from muniment.integrations.langgraph_sealed import SealedSaver
from muniment.thread_folder import ThreadFolder
from muniment.thread_register import Registering

__all__ = ["GovernedSaver", "Registering", "govern"]


def govern(
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    *,
    storage: Literal["one-file-a-thread", "sealed"],
    folder: str | Path,
    subject_from: SubjectFrom = "configurable.user_id",
    register: Registering | None = None,
) -> GovernedSaver:
    """Return a checkpointer that keeps threads so that each can be erased by itself; see the module.

    Whose thread it is comes from `subject_from`, else from `with subject(...)`. `folder` is on this machine and is what
    the service gets as `folder` or `keys`; every process of the agent uses the same one. `register` says where threads
    are registered; a service that is down or refuses stops no run.
    Raises: ValueError for what does not fit together, KeyMissing for a damaged folder, OSError.
    """
    saver = _saver(checkpointer, storage, folder, Whose(subject_from))
    if register is not None:
        saver.begin_registering(register)
    return saver


def _saver(checkpointer: Any, storage: str, folder: str | Path, whose: Whose) -> GovernedSaver:
    if storage == "one-file-a-thread":
        if checkpointer is not None:
            raise ValueError('storage="one-file-a-thread" makes its own savers; give it no checkpointer')
        return ThreadFiles(ThreadFolder(Path(folder)), whose)
    if storage != "sealed":
        raise ValueError('storage is "one-file-a-thread" or "sealed"')
    if checkpointer is None:
        raise ValueError('storage="sealed" seals what a checkpointer stores; give it one')
    import cryptography  # noqa: F401 -- missing, it is better said now than in the first run

    return SealedSaver(checkpointer, ThreadFolder(Path(folder)), whose)
