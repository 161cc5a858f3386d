"""Agree on one schema for all sites, or raise one sentence that says which site has to mend what.

A table that is cut into sites gives the same columns, levels and classes here as `tasks.user_data.table` gives when it
reads the table in one piece, except for three things that a server cannot or should not know: texts that look like
names or ids, which a site does not disclose; a column of text that only says which site a row is from; and true and
false that some sites write as 1 and 0.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from farfield.deployment.schema.conflict import SchemaConflict, at, need_same, quoted
from farfield.deployment.schema.site_schema import AgreedSchema, ArraySite, SiteSchema, TableSite
from farfield.tasks.task import TaskKind
from farfield.tasks.user_data import folder
from farfield.tasks.user_data.arrays import array_model
from farfield.tasks.user_data.column_decision import Observed, all_levels, decide, in_order, label_kind, too_many
from farfield.tasks.user_data.preparation import Column, TablePreparation
from farfield.tasks.user_data.roles import LEAST_ROWS
from farfield.tasks.user_data.table import DEFAULTS, table_model
from farfield.tasks.user_data.yes_and_no import classes_in_order

KINDS = {
    "number": "numbers",
    "boolean": "true and false",
    "text": "text",
    "category": "categories",
    "date": "dates",
    "other": "neither numbers nor text",
}
FORMS = {"table": "a table", "arrays": "arrays", "images": "images", "task": "a registered task"}
LEFT_OUT = {
    "empty": "it has no values at any site",
    "odd": "it holds no numbers, texts or true and false; add a column of numbers made from it to use it",
    "constant": "every row of every site has the same value",
    "names": "it has so many different texts that they are names or ids; say categorical to use it all the same",
}
Parts = Mapping[str, Observed]


def agree(
    reported: Mapping[str, SiteSchema] | Iterable[tuple[str, SiteSchema]],
    evaluating: Mapping[str, SiteSchema] | None = None,
) -> AgreedSchema:
    """Return the schema of these sites together. It does not depend on their order.

    Sites that only evaluate decide nothing: they have to fit what the training sites agree on. A class that only such a
    site has is unseen there.
    """
    pairs = list(reported.items() if isinstance(reported, Mapping) else reported)
    others = dict(evaluating or {})
    names = [*(name for name, _ in pairs), *others]
    if not pairs:
        raise SchemaConflict("no site has reported a schema")
    for name in names:
        if names.count(name) > 1:
            raise SchemaConflict(
                f"two sites are named '{name}'; give one of them another name in its site file", [name]
            )
    training = dict(pairs)
    agreed = _agree(training)
    for name, site in others.items():
        try:
            _agree({**training, name: _fitting_part(site, agreed)})
        except SchemaConflict as conflict:
            raise SchemaConflict(str(conflict), [name], conflict.column) from None
    if not others:
        return agreed
    rows = {name: site.rows for name, site in {**training, **others}.items()}
    return agreed.model_copy(update={"sites": {name: rows[name] for name in _in_order({**training, **others})}})


def _agree(reported: Mapping[str, SiteSchema]) -> AgreedSchema:
    sites = {name: reported[name] for name in in_order(reported)}
    need_same(
        {name: site.form for name, site in sites.items()},
        lambda form: f"the data is {FORMS[form]}",
        "sites that train together need data of one form",
    )
    tables = {name: site for name, site in sites.items() if isinstance(site, TableSite)}
    if tables:
        return _agree_tables(tables)
    return _agree_examples({name: site for name, site in sites.items() if isinstance(site, ArraySite)})


def _fitting_part(site: SiteSchema, agreed: AgreedSchema) -> SiteSchema:
    """The part of an evaluating site's schema that has to fit: columns that nobody trains on need not."""
    if not isinstance(site, TableSite):
        return site
    used = {column.name for column in agreed.columns}
    return site.model_copy(update={"columns": tuple(column for column in site.columns if column.name in used)})


def _in_order(sites: Mapping[str, SiteSchema]) -> list[str]:
    """The sites' names in the order in which one machine would number the domains."""
    first = next(iter(sites.values()))
    if isinstance(first, ArraySite) and first.form == "task":
        known = list(first.domains)
        return sorted(in_order(sites), key=lambda name: known.index(name) if name in known else len(known))
    return sorted(sites) if first.form == "images" else list(in_order(sites))


def _agree_tables(sites: Mapping[str, TableSite]) -> AgreedSchema:
    for name, site in sites.items():
        if site.rows < LEAST_ROWS:
            raise SchemaConflict(
                f"site '{name}' has {site.rows} rows, and a domain needs at least {LEAST_ROWS}", [name]
            )
    kind, classes = _agree_labels(sites)
    columns, notes = _agree_columns(sites)
    for name, site in sites.items():
        if kind == "classification" and len(site.label.levels or ()) == 1:
            only = quoted(site.label.levels or ())
            notes += (f"site '{name}' has one class only ({only} in all its {site.rows} rows)",)
    label = next(iter(sites.values())).label.name
    if not columns:
        raise SchemaConflict(f"no column is left to learn from beside the label '{label}': {'; '.join(notes)}")
    return AgreedSchema(
        form="table",
        kind=kind,
        classes=classes,
        shape=(len(columns),),
        dtype="float64",
        model=table_model(TablePreparation(columns), len(classes)),
        defaults=dict(DEFAULTS),
        sites={name: site.rows for name, site in sites.items()},
        columns=columns,
        label=label,
        notes=notes,
    )


def _agree_columns(sites: Mapping[str, TableSite]) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    reported = {name: {column.name: column for column in site.columns} for name, site in sites.items()}
    columns, notes = [], []
    for column in dict.fromkeys(name for of_site in reported.values() for name in of_site):
        parts = {name: of_site[column] for name, of_site in reported.items() if column in of_site}
        if len(parts) > 1 and _names_the_site(parts):
            notes.append(f"column '{column}' was left out: it only says which site a row is from")
            continue
        _check_kinds(column, parts)
        decided, reason = decide(list(parts.values()))
        if reason is not None:
            _check_undisclosed(column, parts)
            notes.append(f"column '{column}' was left out: {LEFT_OUT[reason]}")
        if decided is not None:
            if len(parts) < len(sites):
                raise _lacking(column, list(parts), reported)
            columns.append(decided)
    return tuple(columns), tuple(notes)


def _names_the_site(parts: Parts) -> bool:
    levels = [part.levels for part in parts.values() if part.constant and part.found == "text"]
    return len(levels) == len(parts) == len(set(levels))


def _check_kinds(column: str, parts: Parts) -> None:
    """Refuse a column whose kinds at two sites cannot mean the same."""
    filled = {name: part for name, part in parts.items() if part.found != "nothing"}
    found = {part.found for part in filled.values()}
    if len(found) < 2 or found == {"text", "category"} or found <= {"date", "other", "text"}:
        return  # dates and a word in place of one are left out, wherever they lie
    numbers = [part for part in filled.values() if part.found == "number"]
    if found == {"boolean", "number"} and all(part.levels and set(part.levels) <= {"0", "1"} for part in numbers):
        return
    way_out = "mend it there or have it dropped everywhere"
    if "category" in found:
        way_out = f'write categorical = ["{column}"] in every site file, or in none'

    def described(part: Observed) -> str:
        not_a_number = next((level for level in part.levels or () if not _is_number(level)), None)
        example = f" (such as '{not_a_number}')" if part.found == "text" and not_a_number and "number" in found else ""
        return f"{KINDS[part.found]}{example}"

    by_kind: dict[str, list[str]] = {}
    for name, part in filled.items():
        by_kind.setdefault(part.found, []).append(name)
    (common, most), *others = sorted(by_kind.items(), key=lambda group: -len(group[1]))
    differing = [f"{described(filled[names[0]])} {at(names)}" for _, names in others]
    raise SchemaConflict(
        f"column '{column}' is {KINDS[common]} {at(most)} and {' and '.join(differing)}; {way_out}",
        [name for _, names in others for name in names],
        column,
    )


def _check_undisclosed(column: str, parts: Parts) -> None:
    """Refuse texts that a site does not disclose, if the texts of all sites together might be categories."""
    undisclosed = [name for name, part in parts.items() if part.found == "text" and part.levels is None]
    least = max(part.distinct for part in parts.values())
    if not undisclosed or len(undisclosed) == len(parts) or too_many(least, sum(part.known for part in parts.values())):
        return
    part = parts[undisclosed[0]]
    raise SchemaConflict(
        f"column '{column}' looks like names or ids {at(undisclosed)} ({part.distinct} different texts in {part.known} "
        f'rows), which were not disclosed, and like categories elsewhere; write categorical = ["{column}"] in the site '
        "file if they may be disclosed, or have it dropped everywhere",
        undisclosed,
        column,
    )


def _lacking(column: str, having: Sequence[str], reported: Mapping[str, Mapping[str, Observed]]) -> SchemaConflict:
    lacking = [name for name in reported if name not in having]
    if len(having) < len(lacking):
        those = "sites" if len(lacking) > 1 else "site"
        return SchemaConflict(
            f"site {quoted(having)} has a column '{column}', which the other {len(lacking)} {those} lack; write "
            f'drop = ["{column}"] in its site file, or add it everywhere',
            having,
            column,
        )
    others = f"the other {len(having)} sites have" if len(having) > 1 else f"'{having[0]}' has"
    near = difflib.get_close_matches(column.lower(), [other.lower() for other in reported[lacking[0]]], n=1, cutoff=0.8)
    own = next((other for other in reported[lacking[0]] if near and other.lower() == near[0] and other != column), None)
    known = own is not None and any(own in reported[name] for name in having)
    rename = f"rename its column '{own}' if that is the same" if own and not known else "add it"
    return SchemaConflict(
        f"site {quoted(lacking)} has no column '{column}', which {others}; {rename}, or have it dropped everywhere",
        lacking,
        column,
    )


def _agree_labels(sites: Mapping[str, TableSite]) -> tuple[TaskKind, tuple[str, ...]]:
    labels = {name: site.label for name, site in sites.items()}
    label = need_same(
        {name: site_label.name for name, site_label in labels.items()},
        lambda name: f"the label is '{name}'",
        "call the column the same at every site",
    )
    need_same(
        {name: site_label.found for name, site_label in labels.items()},
        lambda found: f"the label '{label}' is {KINDS[found]}",
        "write its values the same way at every site",
    )
    parts = list(labels.values())
    kind, levels = label_kind(parts), all_levels(parts)
    if levels is not None and len(levels) < 2:
        raise SchemaConflict(
            f"the label '{label}' has the value {quoted(levels)} at every site; nothing can be learned"
        )
    if kind == "regression":
        return kind, ()
    assert levels is not None
    check_classes({name: site_label.levels or () for name, site_label in labels.items()}, f"the label '{label}'")
    rows = sum(site.rows for site in sites.values())
    if len(levels) > 2 and 2 * len(levels) > rows:
        raise SchemaConflict(
            f"the label '{label}' has {len(levels)} classes in {rows} rows; a class needs several rows, so name "
            "another label column"
        )
    return kind, classes_in_order(levels)


def check_classes(classes: Mapping[str, Sequence[str]], what: str) -> None:
    """Refuse classes that two sites spell differently, and a site whose classes nobody else has."""
    users: dict[str, list[str]] = {}
    for name, of_site in classes.items():
        for each in of_site:
            users.setdefault(each, []).append(name)
    for one, other in combinations(sorted(users, key=lambda each: (len(users[each]), each)), 2):
        if _spelling(one) == _spelling(other) and not set(users[one]) & set(users[other]):
            raise SchemaConflict(
                f"{what} has the class '{one}' {at(users[one])} and '{other}' {at(users[other])}; if these are the "
                "same, spell them alike",
                users[one],
            )
    for name, of_site in classes.items():
        if len(classes) > 1 and all(users[each] == [name] for each in of_site):
            others = in_order(each for each in users if each not in of_site)
            raise SchemaConflict(
                f"{what} is {quoted(of_site)} at '{name}', and no other site knows such a class (there it is "
                f"{quoted(others)}); name the classes alike",
                [name],
            )


def _spelling(text: str) -> str:
    """Return a text without the differences between spellings: case, spaces, hyphens and underscores."""
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)", "", unicodedata.normalize("NFKC", text).casefold().strip())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _agree_examples(sites: Mapping[str, ArraySite]) -> AgreedSchema:
    first = next(iter(sites.values()))
    checks = {
        "task": lambda site: f"the task is '{site.task}'",
        "shape": lambda site: f"an example has the shape {' × '.join(map(str, site.shape))}",
        "dtype": lambda site: f"examples are {site.dtype}",
        "kind": lambda site: f"the labels are {'classes' if site.kind == 'classification' else 'real numbers'}",
    }
    for described in checks.values():
        need_same(sites, described, "sites that train together need the same")
    if first.form == "task":
        for name, site in sites.items():
            if site.model_copy(update={"rows": first.rows, "observed": first.observed}) != first:
                raise SchemaConflict(
                    f"site '{name}' has another version of the task '{first.task}' than '{next(iter(sites))}': its "
                    "columns, classes or model differ; install the same data and the same farfield",
                    [name],
                )
    classes: tuple[str, ...] = max((site.classes for site in sites.values()), key=len)
    columns, model, defaults, shape = first.columns, first.model, first.defaults, first.shape
    if first.form == "task":
        if first.observed:
            columns = _task_columns(sites)
            shape = (len(columns),)
            assert model is not None
            model = model.model_copy(update={"input_shape": TablePreparation(columns).shape})
    elif first.form == "images":
        check_classes({name: site.classes for name, site in sites.items()}, "the folder of images")
        classes = tuple(sorted({each for site in sites.values() for each in site.classes}))
        model, defaults = folder.image_model(first.shape[-1], len(classes)), dict(folder.DEFAULTS)
    elif len(first.shape) == 1:
        missing = [any(flags) for flags in zip(*(site.missing for site in sites.values()), strict=True)]
        columns = tuple(Column(f"x{number}", "number", missing=flag) for number, flag in enumerate(missing))
        model, defaults = table_model(TablePreparation(columns), len(classes)), dict(DEFAULTS)
    else:
        model, defaults = array_model(first.shape, len(classes)), dict(DEFAULTS)
    if first.kind == "classification" and len(classes) < 2:
        raise SchemaConflict(f"all sites have the class {quoted(classes)} only; nothing can be learned")
    assert model is not None
    return AgreedSchema(
        form=first.form,
        kind=first.kind,
        classes=classes,
        shape=shape,
        dtype=first.dtype,
        model=model,
        defaults=defaults,
        sites={name: sites[name].rows for name in _in_order(sites)},
        columns=columns,
        words=first.words,
        task=first.task,
    )


def _task_columns(sites: Mapping[str, ArraySite]) -> tuple[Column, ...]:
    """The columns of a registered task that the training sites' rows decide, in the task's order."""
    decided = (decide(list(parts))[0] for parts in zip(*(site.observed for site in sites.values()), strict=True))
    columns = tuple(column for column in decided if column is not None)
    if not columns:
        raise SchemaConflict("no column of the task is left to learn from with the rows of these sites")
    return columns
