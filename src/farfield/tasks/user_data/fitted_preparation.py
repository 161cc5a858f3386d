"""A fitted preparation from its JSON, whichever kind it is."""

from __future__ import annotations

from farfield.tasks.user_data.bag_of_words import KIND as WORDS
from farfield.tasks.user_data.bag_of_words import FittedWords
from farfield.tasks.user_data.preparation import FittedTable


def read_fitted(content: object) -> FittedTable | FittedWords:
    """Raises PreparationError for what is no preparation of this version."""
    given = content if isinstance(content, dict) else {}
    return (FittedWords if given.get("kind") == WORDS else FittedTable).from_json(given)
