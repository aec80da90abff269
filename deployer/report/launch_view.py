"""A launch in progress: a live panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from deployer.deploy.wait import WaitUpdate
from deployer.sglang.log.launch import PHASES, Count
from deployer.text import duration, size

#: Seconds between two lines of one phase without a terminal.
PLAIN_INTERVAL = 10.0
#: Ranks drawn with a bar of their own.
_MAX_RANKS = 8
_BAR_WIDTH = 28


class LaunchView:
    """Shows the updates of one launch. ``live`` None: a panel if the console is a terminal, else plain lines."""

    def __init__(self, console: Console, *, live: bool | None = None) -> None:
        self._console = console
        self._is_live = console.is_terminal if live is None else live
        self._live: Live | None = None
        self._spinner = Spinner("dots")
        self._phase: str | None = None
        self._printed = 0.0
        self._last_line = ""

    def update(self, update: WaitUpdate) -> None:
        """Show the launch as it is now."""
        if update.lines:
            self._last_line = update.lines[-1].strip()
        if self._is_live:
            panel = self._panel(update)
            if self._live is None:
                self._live = Live(panel, console=self._console, refresh_per_second=8, transient=True)
                self._live.start()
            else:
                self._live.update(panel)
        else:
            self._plain(update)

    def close(self) -> None:
        """Remove the panel; the step's own line sums the launch up. Safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _panel(self, update: WaitUpdate) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=2)
        table.add_column(width=10)
        table.add_column(justify="right", width=9)
        table.add_column(style="dim", overflow="ellipsis", no_wrap=True)
        spans = {span.name: span for span in update.phases}
        here = PHASES.index(update.phase)
        for index, name in enumerate(PHASES):
            span = spans.get(name)
            earlier = update.estimate.seconds.get(name) if update.estimate else None
            past = f"last time {duration(earlier)}" if earlier is not None else ""
            if span is None:
                if index > here:
                    table.add_row("", Text(name, style="dim"), "", past)
            elif index < here:
                table.add_row(Text("✓", style="green"), name, duration(span.seconds), past)
            else:
                text = ", ".join(part for part in (update.text, past) if part)
                table.add_row(self._spinner, Text(name, style="bold"), duration(span.seconds), text)
        parts: list[RenderableType] = [table]
        if bars := self._bars(update):
            parts.append(bars)
        if facts := _facts(update):
            parts.append(Text(f"   {facts}", style="dim", no_wrap=True, overflow="ellipsis"))
        if self._last_line:
            parts.append(Text(f"   {self._last_line}", style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def _bars(self, update: WaitUpdate) -> Table | None:
        wanted = {"load": "shards", "capture": "captures"}.get(update.phase)
        rows: list[tuple[str, Count, str]] = []
        for rank in update.state.ranks if wanted else ():
            count: Count | None = getattr(rank, wanted or "")
            if count is not None:
                size = f"bs {rank.batch_size}" if wanted == "captures" and rank.batch_size else ""
                rows.append((rank.rank or "rank 0", count, size))
        if not rows and update.phase == "load" and update.bytes_total and update.bytes_read and not update.cached:
            read = min(update.bytes_read, update.bytes_total)
            rows.append(("weights", Count(read >> 20, update.bytes_total >> 20), "MiB"))
        if not rows:
            return None
        table = Table.grid(padding=(0, 1))
        for name, count, size in rows[:_MAX_RANKS]:
            bar = ProgressBar(total=max(count.total, 1), completed=count.done, width=_BAR_WIDTH, complete_style="cyan")
            table.add_row(f"   {name}", bar, str(count), Text(size, style="dim"))
        if len(rows) > _MAX_RANKS:
            table.add_row(f"   and {len(rows) - _MAX_RANKS} more", "", "", "")
        return table

    def _plain(self, update: WaitUpdate) -> None:
        changed = update.phase != self._phase
        if not changed and update.t - self._printed < PLAIN_INTERVAL:
            return
        parts = [update.text] if update.text else []
        if changed and len(update.phases) > 1:
            before = update.phases[-2]
            parts.insert(0, f"{before.name} took {duration(before.seconds)}")
        if facts := _facts(update):
            parts.append(facts)
        self._phase, self._printed = update.phase, update.t
        line = f"{duration(update.t):>9}  {update.phase:<10} {'; '.join(parts)}".rstrip()
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _facts(update: WaitUpdate) -> str:
    facts = []
    # Once loading is over, what was read says nothing about the current wait.
    if update.phase == "load" and update.cached:
        facts.append("weights come from the page cache")
    elif update.phase == "load" and update.bytes_read:
        facts.append(_read(update.bytes_read, update.bytes_total))
    if update.gpu_memory:
        facts.append(f"GPU memory {size(update.gpu_memory)}")
    if update.health and update.health != "refused":
        facts.append(f"health {update.health}")
    if update.remaining:
        facts.append(f"about {duration(update.remaining)} left{_source(update)}")
    if update.quiet >= 15:
        facts.append(f"quiet for {duration(update.quiet)}")
    return ", ".join(facts)


def _read(read: int, total: int | None) -> str:
    """What was read from storage: more than the checkpoint if parts had to be read again."""
    if not total:
        return f"read {size(read)}"
    if read > total:
        return f"read {size(read)} (the checkpoint has {size(total)})"
    return f"read {size(read)} of {size(total)} ({100 * read // total} %)"


def _source(update: WaitUpdate) -> str:
    """Return which release's launch the estimate is taken from, by its number as `history` shows it."""
    return f", from release {update.estimate.release.partition('-')[0]}" if update.estimate else ""
