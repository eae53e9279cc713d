"""Questions about a scenario: predict, then run. The right answer is the one that is true of the numbers of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from precisionlab.scenarios.checking import holding
from precisionlab.scenarios.columns import WIDTH, number, paragraphs
from precisionlab.scenarios.model import Question, Scenario, ScenarioError

LETTERS = "abcdefgh"


def question_text(question: Question, position: int, total: int, width: int = WIDTH) -> str:
    """The question and its choices, lettered."""
    lines = [paragraphs(f"{position} of {total}. {question.text}", width)]
    lines += [paragraphs(f"{LETTERS[i]}) {text}", width, "   ") for i, (text, _) in enumerate(question.choices)]
    return "\n".join(lines)


def parse_answer(text: str, question: Question) -> int:
    """The position of the choice that was typed. Raises ``ScenarioError`` for anything but one of the letters."""
    letters = LETTERS[: len(question.choices)]
    wanted = text.strip().lower().rstrip(")")
    if len(wanted) != 1 or wanted not in letters:
        raise ScenarioError(f"{text.strip()!r} is none of the choices", hint=f"a letter from {letters[0]} to {letters[-1]}")
    return letters.index(wanted)


def correct(question: Question, numbers: Mapping[str, float]) -> int:
    """The position of the choice that is true. Raises ``ScenarioError`` unless exactly one is."""
    true = holding(question, dict(numbers))
    if len(true) != 1:
        raise ScenarioError(f"{len(true)} choices of {question.text!r} are true of this run", hint="precisionlab scenarios check says why")
    return true[0]


def ask(scenario: Scenario, read: Callable[[str], str], write: Callable[[str], None]) -> list[int]:
    """Asks every question, again where a line is no answer. Returns the positions chosen. ``EOFError`` of ``read`` is passed on."""
    chosen = []
    total = len(scenario.questions)
    for position, question in enumerate(scenario.questions, 1):
        write(question_text(question, position, total))
        while True:
            try:
                chosen.append(parse_answer(read("your answer: "), question))
                break
            except ScenarioError as error:
                write(str(error))
        write("")
    return chosen


def verdicts(scenario: Scenario, chosen: list[int], numbers: Mapping[str, float], width: int = WIDTH) -> tuple[str, int]:
    """Whether each answer is right, with the numbers that decide; and how many are."""
    lines, right = [], 0
    for position, (question, answer) in enumerate(zip(scenario.questions, chosen, strict=True), 1):
        true = correct(question, numbers)
        right += answer == true
        word = "right" if answer == true else "not so"
        lines.append(paragraphs(f"{position}. {word}: {LETTERS[true]}) {question.choices[true][0]}", width))
        used = [f"{name.replace('_', ' ')} = {number(value)}" for name, value in numbers.items() if name in question.choices[true][1]]
        if used:
            lines.append(paragraphs(f"measured: {', '.join(used)}", width, "   "))
    return "\n".join(lines), right
