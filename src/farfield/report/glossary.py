"""The words that a reader of a report may not know, each explained in the place where it stands.

On the page a word of this list becomes a button that opens its explanation, without a script and by keyboard. The
list stands at the end of the page as well, for paper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from farfield.report.formats import printable


@dataclass(frozen=True)
class Term:
    """A word, what it means in two or three plain sentences, and the spellings under which it appears in text."""

    word: str
    meaning: str
    spellings: tuple[str, ...] = ()


TERMS: dict[str, Term] = {
    "held-out": Term(
        "held-out domain",
        "A domain (a hospital, a camera, a kind of picture) that took no part in training, not even in choosing a "
        "round. Each held-out domain plays the part of a new site.",
        ("held-out domains", "held-out domain", "held out", "domains it never saw"),
    ),
    "beyond-chance": Term(
        "beyond chance, within chance",
        "A difference is beyond chance when it would rarely (less than 1 time in 20, over all comparisons together) "
        "be seen if the two were equally good. 'Within chance' does not mean equal: it means that this bench cannot "
        "tell. The smallest difference that it could have found stands beside it.",
        ("beyond chance", "within chance", "no difference beyond chance"),
    ),
    "holm": Term(
        "Holm's correction",
        "Who compares many methods finds one that looks better by luck. Holm's correction asks more of each "
        "comparison the more there are, so that the chance of any false alarm among them stays at 5 %.",
        ("Holm-corrected", "Holm's correction", "Holm"),
    ),
    "source-validation": Term(
        "source validation",
        "Rows of the training domains that were kept out of training. They choose the round; the held-out domain has "
        "no say. Results here are usually better than at a new site.",
        ("source-validation", "source validation"),
    ),
    "participating": Term(
        "participating",
        "The same validation rows of the training domains, pooled: every row counts the same, so large domains weigh "
        "more. It says how well the model serves those who took part.",
        ("participating",),
    ),
    "prediction-interval": Term(
        "prediction interval",
        "The range in which the result at one new site is likely to lie, if that site is like the ones held out here. "
        "It is wider than the interval of the mean, because sites differ.",
        ("prediction interval", "likely to lie"),
    ),
    "interval": Term(
        "95 % interval of the mean",
        "The range in which the average over many such domains is likely to lie. It says little about one new "
        "site; that is what the prediction interval is for.",
        ("95 % interval", "interval of the mean"),
    ),
    "prior": Term(
        "prior",
        "A reference that learns nothing from the inputs: it always answers the commonest class of the training "
        "domains, or their mean. A method that is not better than this has learned nothing that helps a new site.",
        ("prior",),
    ),
    "reference": Term(
        "reference",
        "Not a federated method, but what it is measured against: 'erm' trains on all rows in one place, 'local-only' "
        "trains each client alone, 'prior' learns nothing.",
        ("reference",),
    ),
    "power": Term(
        "could find",
        "The smallest true difference that a bench of this size and spread finds in 4 of 5 cases (80 % power). "
        "Smaller differences can be real and still be called 'within chance' here.",
        ("could find", "would find a true difference", "80 % power"),
    ),
    "on-these": Term(
        "on these domains",
        "Whether a method is better on exactly these domains when training is repeated with other seeds. This is "
        "easier to show than being better on a new domain, and says less. It needs five seeds.",
        ("on these domains",),
    ),
    "auroc": Term(
        "AUROC",
        "The chance that a row of class 1 gets a higher score than a row of class 0. 0.5 is guessing, 1 is perfect. It "
        "does not depend on how common the classes are, nor on a threshold.",
        ("AUROC",),
    ),
    "balanced": Term(
        "balanced accuracy",
        "The mean of the shares of each class that were answered right, so that a rare class counts as much as a "
        "common one.",
        ("balanced accuracy",),
    ),
    "rmse": Term(
        "root mean squared error",
        "The typical size of an error in the units of the label; large errors weigh more. Lower is better.",
        ("root mean squared error", "RMSE"),
    ),
    "calibration": Term(
        "calibration",
        "Whether scores mean what they say: of the rows with a score of 0.3, three in ten should be of class 1. A "
        "slope of 1 and an intercept of 0 are perfect. A slope below 1 means that scores are too extreme.",
        ("calibration slope", "calibration", "slope"),
    ),
    "net-benefit": Term(
        "net benefit",
        "What acting on the model's scores is worth, compared with doing nothing: true positives minus false "
        "positives, the latter weighted by the threshold. A model helps at a threshold where its curve lies above both "
        "'treat all' and 'treat none'.",
        ("net benefit", "Decision curve", "decision curve"),
    ),
    "brier": Term(
        "Brier score",
        "The mean squared difference between score and truth. 0 is perfect. It is worse for wrong ranking and for "
        "wrong calibration alike.",
        ("Brier score", "Brier"),
    ),
    "oracle": Term(
        "oracle",
        "A rule that chooses the round by looking at the held-out domain. Nobody can do that for a new site: it shows "
        "a ceiling, not a result.",
        ("looks at the held-out domain",),
    ),
    "seeds": Term(
        "seed",
        "The number that starts all random choices of a run. Runs with different seeds show how much a result varies "
        "when nothing but luck changes.",
        ("seeds", "seed"),
    ),
    "worst": Term(
        "worst domain",
        "The held-out domain with the worst mean over seeds. Some new sites will be like this one.",
        ("worst domain",),
    ),
    "looks": Term(
        "looks at the target",
        "Results on held-out domains are sealed, and every opening is counted. Who looks often and changes settings in "
        "between tunes on what should have been unseen.",
        ("looks at the target", "Held-out results opened"),
    ),
    "fairness": Term(
        "fairness",
        "How even the results are over domains: a low variance and a high entropy mean that no domain is left behind.",
        ("entropy", "evenness"),
    ),
    "tuned": Term(
        "tuned",
        "Settings chosen by trials on source data. Where only defaults were used, a method that is better or worse "
        "here may rank elsewhere after tuning.",
        ("tuned",),
    ),
}

_BY_SPELLING = {spelling.lower(): key for key, term in TERMS.items() for spelling in term.spellings}
_PATTERN = re.compile(
    r"(?<![\w-])(" + "|".join(sorted(map(re.escape, _BY_SPELLING), key=len, reverse=True)) + r")(?![\w-])",
    re.IGNORECASE,
)


def explained(text: str, known: set[str] | None = None) -> Markup:
    """Return the text with each known word as a button that explains it, once per text.

    `known` are words that need no explanation here any more; those found are added to it.
    """
    seen = set() if known is None else known
    parts, at = [], 0
    clean = printable(text)
    for match in _PATTERN.finditer(clean):
        key = _BY_SPELLING[match.group().lower()]
        if key in seen:
            continue
        seen.add(key)
        parts += [escape(clean[at : match.start()]), button(key, match.group())]
        at = match.end()
    return Markup("").join([*parts, escape(clean[at:])])


def button(key: str, text: str) -> Markup:
    """Return a button that opens the explanation of a word."""
    return Markup('<button type="button" class="term" popovertarget="term-{}">{}</button>').format(key, text)


def spellings() -> dict[str, str]:
    """Return the glossary's keys by spelling, for tables that the page's script draws."""
    return dict(_BY_SPELLING)
