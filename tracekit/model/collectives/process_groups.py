"""The process group of each collective: size, members and description, by its own arguments, else the file's header.

Kineto writes the groups of a rank into the header (``distributedInfo.pg_config``), which is all that gloo's rows, which
name no group, can be told by: where all groups of a rank are alike, so is the one of its collectives. Communicators
without a name are told apart by their `Comms Id`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import polars as pl

from tracekit.model.recordings import RUN
from tracekit.read.traces import PROCESS_GROUPS_SCHEMA

_MEMBERS = "members"


def with_process_groups(rows: pl.DataFrame, header: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with `group`, `group_size`, `group_desc` and `members` ("0, 1") filled in where they are known.

    `only_group_size` is the size of all groups in the header, where they have one. `header` is PROCESS_GROUPS_SCHEMA.
    """
    named = header.drop_nulls("group").unique([*RUN, "group"], keep="none")
    by_name = named.rename({name: f"{name}_told" for name in PROCESS_GROUPS_SCHEMA if name not in {*RUN, "group"}})
    alike = pl.col("group_size", "members")
    only = header.group_by(RUN).agg(pl.when(alike.n_unique() == 1).then(alike.first()).name.prefix("only_"))
    members = _mapped(rows["group_ranks"], _whole_list).alias(_MEMBERS)
    rows = rows.with_columns(members).join(by_name, on=[*RUN, "group"], how="left", maintain_order="left")
    rows = rows.join(only, on=RUN, how="left", maintain_order="left").with_columns(
        pl.coalesce("group_size", "group_size_told").alias("group_size"),
        pl.coalesce("group_desc", "group_desc_told").alias("group_desc"),
        pl.coalesce(
            _MEMBERS, "members_told", pl.when(pl.col("group").is_null()).then(pl.col("only_members"))
        ).alias(_MEMBERS),
    )  # fmt: skip
    return _without_strangers(_told_apart(rows)).drop("group_size_told", "group_desc_told", "members_told")


def _told_apart(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with a name for communicators that have none but a `Comms Id`.

    Where ranks do not share ids, the first of each rank is taken for the same communicator, and so on.
    """
    nameless = (pl.col("group").fill_null("") == "") & pl.col("comms_id").is_not_null()
    ids = rows.filter(nameless).sort("at_ns").unique([*RUN, "comms_id"], keep="first", maintain_order=True)
    if ids.is_empty():
        return rows.with_columns(pl.when(pl.col("group") != "").then("group").alias("group"))
    shared = (pl.col("rank").n_unique().over("cycle", "comms_id") > 1).any() | (pl.col("rank").n_unique() == 1)
    nth = pl.int_range(1, pl.len() + 1).over(RUN)
    label = pl.when(shared).then(pl.format("comms {}", "comms_id")).otherwise(pl.format("communicator {}", nth))
    labels = ids.select(*RUN, "comms_id", label.alias("label"))
    return (
        rows.join(labels, on=[*RUN, "comms_id"], how="left", maintain_order="left")
        .with_columns(pl.when(nameless).then("label").when(pl.col("group") != "").then("group").alias("group"))
        .drop("label")
    )


def _without_strangers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without the members of groups that a rank recorded which is no member: they are not trusted."""
    inside = pl.format(", {},", _MEMBERS).str.contains(pl.format(" {},", "rank"), literal=True)
    believed = inside.fill_null(value=True).all().over("cycle", "group", _MEMBERS)
    return rows.with_columns(pl.when(believed).then(_MEMBERS).alias(_MEMBERS))


def _whole_list(text: str) -> str | None:
    """Return the ranks of a list as text, as PROCESS_GROUPS_SCHEMA has them; None for one that Kineto has cut."""
    try:
        ranks = json.loads(text)
    except ValueError:
        return None
    if not isinstance(ranks, list) or not ranks or not all(type(rank) is int for rank in ranks):
        return None
    return ", ".join(map(str, ranks))


def _mapped(texts: pl.Series, function: Callable[[str], str | None]) -> pl.Series:
    distinct = texts.drop_nulls().unique().to_list()
    found = [function(text) for text in distinct]
    return texts.replace_strict(distinct, pl.Series(found, dtype=pl.String), default=None, return_dtype=pl.String)
