"""Checks of what tokens mean to target and draft. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from paceline_engine.preflight import known
from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.check import Check, failed, passed, skipped, warned
from paceline_engine.preflight.config import Config
from paceline_engine.preflight.model import Model
from paceline_engine.preflight.vocabulary import Vocabulary, differing

ANOTHER = "use a draft made for this target: of the same family, with the same tokenizer"


def checks(asked: Asked, target: Model, draft: Model | None) -> Iterator[Check]:
    """`vocabulary` (sizes) and `tokenizer` (meanings)."""
    if target.config is not None:
        yield _own(target, target.config)
    if draft is None or draft.config is None or target.config is None:
        return
    yield _sizes(asked, target.config, draft.config)
    yield _meanings(asked, target, draft)


def _own(target: Model, config: Config) -> Check:
    """Of the target alone: an id that its embedding lacks ends the engine with a fault on the GPU."""
    name, found = "target-tokenizer", target.vocabulary
    broken = [problem for problem in target.problems if problem.startswith("tokenizer")]
    if broken:
        return failed(name, f"target {target.source}: {broken[0]}", "bring the tokenizer's files anew")
    if found is None:
        return skipped(name, f"target {target.source}: no tokenizer file to look at")
    trained = max(found.ids.values(), default=-1) + 1
    if config.vocabulary and trained <= config.vocabulary < found.size:
        reason = f"{found.file} has control tokens up to {found.size - 1}, the model's vocabulary {config.vocabulary}"
        return warned(name, f"{reason} rows", "do not send them: of models that take text alone they are images' marks")
    if config.vocabulary and found.size > config.vocabulary:
        reason = f"{found.file} has ids up to {found.size - 1}, and the model's vocabulary has {config.vocabulary} rows"
        return failed(name, reason, "the tokenizer is another model's: bring the target's own")
    return passed(name, f"{found.file}: {found.size or 'unknown'} ids, {config.vocabulary} rows in the model")


def _sizes(asked: Asked, target: Config, draft: Config) -> Check:
    name, method = "vocabulary", asked.method
    mine, theirs = target.vocabulary, draft.vocabulary
    if not mine or not theirs:
        return skipped(name, "vocab_size is not said")
    if method == "draft_model":
        if mine == theirs:
            return passed(name, f"both have {mine} tokens")
        if asked.two_vocabularies:
            return passed(name, f"{mine} and {theirs} tokens, mapped on each other by use_heterogeneous_vocab")
        return failed(
            name,
            f"the target has {mine} tokens and the draft {theirs}: vLLM refuses that, also where only padding differs",
            f"{ANOTHER} and the same vocab_size, or set use_heterogeneous_vocab in spec.speculation.extraConfig "
            "(V1 runner, greedy drafts)",
            known.SPECULATIVE,
        )
    if mine != theirs:
        return failed(name, f"the target has {mine} tokens and the draft head was made for {theirs}", ANOTHER)
    if draft.draft_vocabulary > mine:
        return failed(name, f"the draft writes {draft.draft_vocabulary} tokens, the target knows {mine}", ANOTHER)
    reduced = f", of which the draft writes {draft.draft_vocabulary}" if draft.draft_vocabulary else ""
    return passed(name, f"both have {mine} tokens{reduced}")


def _meanings(asked: Asked, target: Model, draft: Model) -> Check:
    name, mine, theirs = "tokenizer", target.vocabulary, draft.vocabulary
    broken = [problem for problem in draft.problems if problem.startswith("tokenizer")]
    if broken:
        return warned(name, f"draft {draft.source}: {broken[0]}", "bring the tokenizer's files anew")
    if mine is None or theirs is None:
        who = "draft" if theirs is None else "target"
        return skipped(name, f"the {who} brings no tokenizer file: what its ids mean cannot be compared")
    if asked.two_vocabularies:
        return passed(name, "tokens are mapped by use_heterogeneous_vocab")
    return _compared(name, mine, theirs)


def _compared(name: str, mine: Vocabulary, theirs: Vocabulary) -> Check:
    if mine.digest == theirs.digest:
        return passed(name, f"the same {mine.size or ''} ids in both".replace("  ", " "))
    if not mine.ids or not theirs.ids:
        if mine.file != theirs.file:
            return skipped(name, f"{mine.file} and {theirs.file} cannot be compared")
        return warned(
            name,
            f"{mine.file} of target and draft differ",
            f"look whether they differ in control tokens alone; else {ANOTHER}",
        )
    count, first = differing(mine.ids, theirs.ids)
    if count:
        return failed(name, f"{count} of {max(mine.size, theirs.size)} ids mean another text: {first}", ANOTHER)
    count, first = differing(mine.added, theirs.added)
    return (
        warned(
            name,
            f"{count} control tokens differ: {first}",
            "drafts of those tokens are refused each time; a draft of the same generation avoids it",
        )
        if count
        else passed(name, "the same ids in both")
    )
