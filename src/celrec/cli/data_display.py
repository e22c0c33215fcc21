"""The description of a log as tables and bars."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from celrec.cli.terminal import facts_table, ruled_table
from celrec.data.description import Description

_WIDTH = 30


def show_description(name: str, about: Description) -> None:
    """Print `about` as tables with bars."""
    console = Console(highlight=False)
    console.print(Text(name, style="bold"))  # a name is no markup
    console.print(_facts(about))
    console.print(_histogram(about))
    console.print(_cold(about))
    console.print(_popularity(about))


def _facts(about: Description) -> Table:
    table = facts_table()
    table.add_row("interactions", f"{about.rows:,}")
    table.add_row("users", f"{about.users:,}  ({about.rows / about.users:,.1f} interactions each)")
    table.add_row("items", f"{about.items:,}  ({about.rows / about.items:,.1f} interactions each)")
    table.add_row("density", f"{about.density:.4%}")
    table.add_row("repeated pairs", f"{about.repeated_pairs:,}")
    if about.dropped:
        table.add_row("rows left out", f"{about.dropped:,}")
    span = f"{about.target_min:g} … {about.target_max:g}"
    table.add_row("target", f"{span}, mean {about.target_mean:.4f} ± {about.target_std:.4f} (sd)")
    table.add_row("time", f"{about.first} … {about.last}" if about.first else "no timestamps")
    table.add_row("user features", ", ".join(about.user_features) or "none")
    table.add_row("item features", ", ".join(about.item_features) or "none")
    return table


def _histogram(about: Description) -> Table:
    table = _bars("target", "rows")
    most = max(count for _, _, count in about.histogram)
    for low, high, count in about.histogram:
        label = f"{low:g}" if low == high else f"{low:.3g} … {high:.3g}"
        table.add_row(label, f"{count:,}", f"{count / about.rows:.1%}", _bar(count / most))
    return table


def _cold(about: Description) -> Table:
    table = ruled_table("interactions", "users", "", "items", "", numbers=("users", "", "items"))
    for limit, users in about.cold_users.items():
        items = about.cold_items[limit]
        shares = f"{users / about.users:.1%}", f"{items / about.items:.1%}"
        table.add_row(f"at most {limit}", f"{users:,}", shares[0], f"{items:,}", shares[1])
    return table


def _popularity(about: Description) -> Table:
    table = _bars("most popular items", "interactions")
    for share, reached in about.popularity.items():
        items = max(round(share * about.items), 1)
        table.add_row(f"{share:.0%}", f"{items:,} items", f"{reached:.1%}", _bar(reached))
    return table


def _bars(first: str, second: str) -> Table:
    table = ruled_table(first, second, "", numbers=(second, ""))
    table.add_column("", no_wrap=True)
    return table


def _bar(share: float) -> str:
    return f"[cyan]{'█' * max(round(share * _WIDTH), 1 if share else 0)}[/]"
