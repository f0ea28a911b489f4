"""One GPU's share of the session: its engines, its stages one after another, its files. A failing stage is noted."""

from __future__ import annotations

import csv
import json
import os
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from remote import Failed, Remote
from scale import SCALE

from engine import Options


class Lane:
    """Stages run within `until`; what a stage saves is there at once."""

    def __init__(self, name: str, out: Path, until: float, only: Collection[str] = ()) -> None:
        self.name = name
        self.only = only
        """Names of stages; empty: all."""
        self.out = out
        self.until = until
        self.start = time.monotonic()
        self.remotes: dict[str, Remote] = {}
        self._stage_until = until
        self._record: dict[str, Any] = {"engines": {}, "stages": {}}
        out.mkdir(parents=True, exist_ok=True)

    def log(self, text: str) -> None:
        """A line with the lane's clock."""
        print(f"[{self.name} {time.monotonic() - self.start:7.1f}] {text}", flush=True)

    def boot(self, options: Sequence[Options]) -> None:
        """Boot all at once (one by one on a CPU), as far as they boot in time."""
        until = min(self.until, time.monotonic() + SCALE.boot_limit)
        quiet = [Path(one.quiet) for one in options if one.quiet]
        for sign in quiet:
            sign.unlink(missing_ok=True)
        for one in options:
            remote = self.remotes[one.name] = Remote(one, self.out / f"engine_{self.name}_{one.name}.log")
            if SCALE.cpu:
                self._ready(remote, time.monotonic() + SCALE.boot_limit)
        for remote in sorted(self.remotes.values(), key=lambda remote: bool(remote.options.quiet)):
            if remote.options.quiet:
                Path(remote.options.quiet).touch()
            if not remote.facts and not remote.failure:
                self._ready(remote, until)

    def _ready(self, remote: Remote, until: float) -> None:
        name = remote.options.name
        try:
            remote.ready(until)
            self.log(f"engine {name} ready: {json.dumps(remote.facts)}")
        except Failed as failed:
            remote.close("did not boot")
            self.log(f"engine {name} FAILED: {failed}")
        self._record["engines"][name] = remote.facts or {"failure": remote.failure}
        self.save(f"lane_{self.name}", self._record)

    def ask(self, engine: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """A function in an engine's process, within the stage's time."""
        return self.remotes[engine].do(function, self._stage_until, **arguments)

    def try_ask(self, engine: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """The same; None where the function failed and the engine lives on, to be asked something else."""
        try:
            return self.ask(engine, function, **arguments)
        except Failed as failed:
            if not self.remotes[engine].alive:
                raise
            self.log(f"{function.__name__} {arguments}: {failed}")
            return None

    def end(self, *engines: str) -> None:
        """End these engines and free their memory."""
        for name in engines:
            self.remotes[name].close()

    def stage(self, name: str, seconds: float, function: Callable[[Lane], None]) -> None:
        """Run a stage for at most `seconds`; whatever it raises is written down and the session goes on."""
        if self.only and name not in self.only:
            return
        begun = time.monotonic()
        left = self.until - begun
        if left < 0.2 * seconds:
            self._note(name, f"skipped: {left:.0f} s left of {seconds:.0f}", 0.0)
            return
        self._stage_until = begun + min(seconds, left)
        self.log(f"stage {name} begins, {left:.0f} s left")
        try:
            function(self)
            outcome = "done"
        except Exception as error:
            traceback.print_exc()
            outcome = f"{type(error).__name__}: {error}"[-2000:]
        self._note(name, outcome, time.monotonic() - begun)

    def _note(self, name: str, outcome: str, seconds: float) -> None:
        self.log(f"stage {name}: {outcome}, {seconds:.1f} s")
        self._record["stages"][name] = {"outcome": outcome, "seconds": round(seconds, 1)}
        self.save(f"lane_{self.name}", self._record)

    def save(self, name: str, content: Any) -> None:
        """`name`.json in one step; a list of flat rows also as CSV."""
        part = self.out / f".{name}.part"
        part.write_text(json.dumps(content, indent=1))
        os.replace(part, self.out / f"{name}.json")

    def save_rows(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """`name`.csv; nested values as JSON in their cell."""
        with (self.out / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            for row in rows:
                writer.writerow({k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()})
