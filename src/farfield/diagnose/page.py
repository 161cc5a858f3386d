"""The page of a diagnosis: one HTML file with the pictures, without network, script or other file."""

from __future__ import annotations

from html import escape

from farfield.diagnose.figures import figure
from farfield.diagnose.finding import LEVEL, Diagnosis, Finding
from farfield.printable import visible

NOTE = (
    "The diagnosis describes all domains before training. Nothing that trains or selects a model reads it. An alarm "
    f"needs a difference of some size that chance gives in at most {100 * LEVEL:.0f} of 100 cases."
)
_STYLE = """
:root { color-scheme: light dark; --diagnose-warm: #d9480f; --diagnose-cool: #1c7ed6; }
@media (prefers-color-scheme: dark) { :root { --diagnose-warm: #ff922b; --diagnose-cool: #4dabf7; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.verdict { border: 1px solid; border-radius: .8em; padding: .05em .6em; font-size: .85em; font-weight: 600; }
.alarm { color: var(--diagnose-warm); } .silent { color: var(--diagnose-cool); } .figure { overflow-x: auto; }
.lead { font-size: 1.1rem; } .quiet { opacity: .75; }
@media print { body { margin: 0; } .figure { overflow: visible; } }
"""


def page(diagnosis: Diagnosis) -> str:
    """Return the page as text."""
    title = f"Diagnosis of {diagnosis.task}"
    facts = f"{len(diagnosis.domains)} domains, {diagnosis.rows:,} rows; shift is measured on {diagnosis.features}."
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><main>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(diagnosis.conclusion)}</p>',
        f'<p class="quiet">{escape(facts)} {escape(NOTE)}</p>',
        *(f'<p class="quiet">Note: {escape(note)}.</p>' for note in diagnosis.notes),
        *(section(finding) for finding in diagnosis.results),
        "</main></body></html>\n",
    ]
    return visible("\n".join(parts))


def section(finding: Finding) -> str:
    """Return one finding as HTML: verdict, sentence, picture, meaning, and what to do."""
    css = {"alarm": "alarm", "silent": "silent"}.get(finding.verdict, "")
    drawn = figure(finding)
    p = "" if finding.p is None else f' <span class="quiet">({escape(chance_text(finding.p))})</span>'
    parts = [
        f'<section><h2>{escape(finding.kind.capitalize())} <span class="verdict {css}">{finding.verdict}</span></h2>',
        f"<p>{escape(finding.sentence)}{p}</p>",
        f'<div class="figure">{drawn}</div>' if drawn else "",
        f"<p>{'' if finding.verdict == 'alarm' else 'An alarm would mean: '}{escape(finding.meaning)}</p>",
        f"<p>What to do: {escape(finding.remedy)}.</p>" if finding.verdict == "alarm" else "",
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def chance_text(p: float) -> str:
    """A p-value in words."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
