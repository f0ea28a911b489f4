"""Prompts of the load, made here: no data set, hardly two alike, and the same ones with the same seed.

All answers are greedy. vLLM 0.32 on a CPU samples wrong text when it verifies drafts at a temperature (the prompts that
give clean text at k=0 give garbage), while greedy text is the same at every k. Nor is an answer forced on beyond its
end: a small model then repeats itself, and every draft is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from paceline_operator.local.document import Text


@dataclass(frozen=True)
class Prompt:
    """What a request asks."""

    text: str
    stop: str | None = None
    """Where the answer is complete."""


def prompt(kind: Text, chance: random.Random) -> Prompt:
    """A prompt of `kind`; the next one with every call."""
    return MAKERS[kind](chance)


def _copy(chance: random.Random) -> Prompt:
    """A passage, and its copy begun at some sentence: the answer stands in the prompt, so most drafts are right.

    Editing code, extracting and quoting are like this.
    """
    passage = chance.choice(PASSAGES)
    sentences = passage.split(". ")
    start = chance.randrange(len(sentences) // 2)
    begun = ". ".join(sentences[start : start + 2])
    return Prompt(f"Original:\n\n{passage}\n\nCopied word for word:\n\n{begun}.", stop="\n\n")


def _numbers(chance: random.Random) -> Prompt:
    """A series to continue: every number has been seen in parts, so drafts fire in each step, and its end is new.

    Tables, logs and time stamps are like this: what is between the values is foreseen, the values are not.
    """
    first, step = chance.randrange(100, 600), chance.choice(STEPS)
    return Prompt(f"Each number is {step} more:\n\n" + ", ".join(str(first + step * i) for i in range(LENGTH)) + ",")


MAKERS: dict[Text, Callable[[random.Random], Prompt]] = {Text.COPY: _copy, Text.NUMBERS: _numbers}
STEPS = (1, 2, 3, 5, 7, 9, 11)
LENGTH = 10
PASSAGES = (
    "The ferry to Kestrel Bay leaves at six, before the fog has lifted from the harbour. Old Piet still stands at the "
    "wheel, although his sons have told him for years that the boat can be steered by a machine. He answers that a "
    "machine has never smelled a storm. On the quay the bakers load their trays, a girl counts mail sacks aloud, and "
    "somebody's goat has to be carried aboard because it will not walk on the planks. When the engine starts, windows "
    "along the water rattle in their frames. Nobody on land looks up any more, but the passengers do. They watch the "
    "town grow small, then grey, then vanish. Halfway across, where the current turns north, the bottom falls away to "
    "ninety metres. Piet lowers his voice there, as his father did. A church bell is said to lie below, lost from a "
    "barge two hundred winters ago. Clara, who studies tides, has measured the place with sound and found only sand, "
    "the ribs of a hull, and one round shape that she has not reported to anyone.",
    "A clock stood in the hall of the mill for sixty years and was never once right. In spring it ran ahead of the "
    "sun, in autumn it fell behind, and on the day of the flood it stopped for an hour and then went on as if nothing "
    "had happened. The miller set it every Sunday with a hazel stick, because the glass was gone and the hands were "
    "sharp. His daughter Lena learned to read the time from it by adding what she knew about the weather. Travellers "
    "laughed at this until they missed the coach. When the mill was sold, the new owner sent the clock to a master in "
    "Northgate, who cleaned every wheel, replaced two springs, and wrote that he could find no fault in it. It came "
    "back in a crate of straw and kept perfect time. Lena, who was old by then, walked over to see it. She listened "
    "for a while, set it nine minutes wrong, and went home content.",
    "To bake the dark loaf of the island, begin the evening before. Stir two cups of rye meal into warm water, cover "
    "the bowl with a cloth, and leave it near the stove but not on it. In the morning the mash should smell of apples. "
    "If it smells of vinegar, the room was too warm, and you may still use it, but bake the loaf longer. Add salt, a "
    "spoon of treacle, and as much wheat flour as the dough will take without growing stiff. Knead it until your "
    "hands come away clean. Let it rise under the cloth while the oven heats, and do not look at it more than once. "
    "Slash the top in the shape of a gull, which lets the steam out and pleases children. Bake it for fifty minutes, "
    "then knock on the bottom with your knuckle. A finished loaf answers like an empty barrel. Wait until it is cold "
    "before you cut it, although nobody on the island ever has.",
)
