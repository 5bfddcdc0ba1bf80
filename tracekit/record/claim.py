"""The folder of a recording: which rank may write where, and the older run that a complete one replaces."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.record import folder, results, team
from tracekit.record.errors import RecordError
from tracekit.record.team import Team

Description = dict[str, Any]


class Claim:
    """Where this rank writes: `folder` is `path`, or a folder beside it while `path` holds a run to replace."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        self.path, self._overwrite = path, overwrite
        self.folder = path
        self.metas: list[dict[str, Any]] = []

    def take(self, me: Team, look: Callable[[], tuple[Description, dict[str, Any]]]) -> Description:
        """Takes the folder on every rank or on none. Returns what `look` describes, with the run's id.

        `look` returns the run's description and this rank's meta, to which the run's id is added, too. Every rank looks
        before any rank writes: the gathering is also the barrier between both. Then rank 0 takes the folder, which of
        two jobs at the same moment only one can. Raises the first refusal of any rank, on every rank.
        """
        refusal: RecordError | None = None
        description, meta = Description(), dict[str, Any]()
        try:
            description, meta = look()
            self.folder = folder.look(self.path, self._overwrite)
        except RecordError as error:
            refusal = error
        everyone = _agreed(me, {"meta": meta, "run_id": uuid.uuid4().hex, "refusal": refusal})
        run_id = everyone[0]["run_id"]
        meta["run_id"] = description["run_id"] = run_id
        self.metas = [other["meta"] | {"run_id": run_id} for other in everyone]
        try:
            if me.rank == 0:
                folder.claim(self.folder, results.manifest(self.folder, description, self.metas))
        except RecordError as error:
            refusal = error
        _agreed(me, {"refusal": refusal})
        return description

    def replace_old(self, me: Team, mine: dict[str, Any]) -> str | None:
        """Puts a complete run in the place of the one that it shall replace; returns why another stays beside it.

        Raises OSError.
        """
        if self.folder == self.path or not self.folder.is_dir():
            return None
        manifest = folder.read_json(self.folder / folder.MANIFEST)
        if me.rank and manifest is not None:
            # Rank 0 moves the files of all that share its disk; elsewhere each rank moves its own.
            return None
        ranks = manifest["ranks"] if manifest else [mine]
        if not all(entry["complete"] for rank in ranks for entry in rank["traces"]):
            return f"the new run is not complete: it is in {folder.shown(self.folder)}, and the old one is where it was"
        folder.replace_run(self.path, self.folder)
        return None


def _agreed(me: Team, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What all ranks have to say. Raises the first refusal among it, on every rank."""
    everyone = team.gather(me, mine)
    for other in everyone:
        if other["refusal"] is not None:
            raise other["refusal"]
    return everyone
